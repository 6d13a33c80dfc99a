#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/launch.h"

namespace flowshard::kernels::cuda {
namespace {

void require(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("linear_gelu: ") + cublasLtGetStatusString(status));
}

template <typename T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T object) const { destroy(object); }
};
using Handle = std::unique_ptr<cublasLtHandle_t, Destroy<cublasLtHandle_t, cublasLtDestroy>>;
using Operation =
    std::unique_ptr<cublasLtMatmulDesc_t, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout =
    std::unique_ptr<cublasLtMatrixLayout_t, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreference_t,
                                   Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

/// A handle belongs to the GPU that is current when it is made.
cublasLtHandle_t handle_of_current_gpu() {
  thread_local std::map<int, Handle> handles;
  int gpu = 0;
  if (cudaGetDevice(&gpu) != cudaSuccess) throw std::runtime_error("linear_gelu: no GPU");
  Handle& handle = handles[gpu];
  if (!handle) {
    cublasLtHandle_t made = nullptr;
    require(cublasLtCreate(&made));
    handle.reset(made);
  }
  return handle.get();
}

/// A column-major matrix of bf16: `rows` contiguous elements, then the next column.
Layout layout(int64_t rows, int64_t columns, int64_t column_stride) {
  cublasLtMatrixLayout_t made = nullptr;
  require(cublasLtMatrixLayoutCreate(&made, CUDA_R_16BF, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(columns), column_stride));
  return Layout(made);
}

template <typename Value>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  require(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)));
}

}  // namespace

// Row-major y = x W^T is column-major y' = W'^T x': [O, N] = [I, O]^T [I, N], with one bias a row.
void enqueue(const LinearGelu& launch, Stream stream) {
  const cublasLtHandle_t handle = handle_of_current_gpu();
  cublasLtMatmulDesc_t made_operation = nullptr;
  require(cublasLtMatmulDescCreate(&made_operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const Operation operation(made_operation);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_BIAS);
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, launch.bias);
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  const Layout weight = layout(launch.inputs, launch.outputs, launch.weight_row_stride);
  const Layout x = layout(launch.inputs, launch.rows, launch.x_row_stride);
  const Layout y = layout(launch.outputs, launch.rows, launch.y_row_stride);

  cublasLtMatmulPreference_t made_preference = nullptr;
  require(cublasLtMatmulPreferenceCreate(&made_preference));
  const Preference preference(made_preference);
  const auto workspace_bytes = static_cast<uint64_t>(launch.workspace_bytes);
  require(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes, sizeof(workspace_bytes)));
  cublasLtMatmulHeuristicResult_t chosen = {};
  int num_found = 0;
  require(cublasLtMatmulAlgoGetHeuristic(handle, operation.get(), weight.get(), x.get(), y.get(), y.get(),
                                         preference.get(), 1, &chosen, &num_found));
  if (num_found == 0) require(CUBLAS_STATUS_NOT_SUPPORTED);
  const float one = 1, zero = 0;
  require(cublasLtMatmul(handle, operation.get(), &one, launch.weight, weight.get(), launch.x, x.get(), &zero,
                         launch.y, y.get(), launch.y, y.get(), &chosen.algo, launch.workspace,
                         workspace_bytes, stream));
}

}  // namespace flowshard::kernels::cuda

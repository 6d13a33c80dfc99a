# LibTorch from the pip wheel, as imported targets. find_package(Torch) is not used: it insists on a CUDA toolkit.
#   libtorch       tensors, autograd, c10d with Gloo. Programs that link no more load no CUDA library.
#   libc10_cuda    with FLOWSHARD_CUDA: streams and the CUDA runtime, for code that launches kernels
#   libcublaslt    with FLOWSHARD_CUDA: matrix products with epilogues
#   libtorch_cuda  with FLOWSHARD_CUDA: CUDA tensors, cuDNN, NCCL; for programs that run on a GPU. They start on a
#                  machine without one as well.

if(NOT EXISTS "${LIBTORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LIBTORCH_DIR='${LIBTORCH_DIR}' holds no LibTorch. Run scripts/setup.sh, then scripts/build.sh.")
endif()

# The wheel bundles its own fmt headers without the library. Ours must come first: one fmt in the whole program.
find_path(fmt_include_dir fmt/format.h PATHS /usr/include NO_DEFAULT_PATH REQUIRED)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/include_first")
file(CREATE_LINK "${fmt_include_dir}/fmt" "${CMAKE_BINARY_DIR}/include_first/fmt" SYMBOLIC)

add_library(libtorch INTERFACE)
target_include_directories(libtorch SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/include_first" "${LIBTORCH_DIR}/include" "${LIBTORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
target_link_directories(libtorch INTERFACE "${LIBTORCH_DIR}/lib")
target_link_libraries(libtorch INTERFACE torch_cpu c10)
# The wheel exports parts of an older libstdc++ (std::filesystem), which crash in place of ours: as an option it comes
# before every library.
target_link_options(libtorch INTERFACE "-Wl,--push-state,--no-as-needed,-lstdc++,--pop-state")
target_link_options(libtorch INTERFACE -Wl,--unresolved-symbols=ignore-in-shared-libs
                    "-Wl,-rpath,${LIBTORCH_DIR}/lib")

if(FLOWSHARD_CUDA)
  # The CUDA runtime of the wheel, also for our own kernels: one runtime in the whole program.
  file(GLOB nvidia_library_dirs "${LIBTORCH_DIR}/../nvidia/*/lib")
  file(GLOB nvidia_include_dirs "${LIBTORCH_DIR}/../nvidia/*/include")
  find_library(CUDART NAMES libcudart.so.13 cudart HINTS ${nvidia_library_dirs} /usr/local/cuda/lib64 REQUIRED)

  add_library(libc10_cuda INTERFACE)
  target_include_directories(libc10_cuda SYSTEM INTERFACE ${nvidia_include_dirs})
  target_link_libraries(libc10_cuda INTERFACE libtorch c10_cuda "${CUDART}")
  foreach(dir IN LISTS nvidia_library_dirs)
    target_link_options(libc10_cuda INTERFACE "-Wl,-rpath,${dir}")
  endforeach()

  find_library(CUBLASLT NAMES libcublasLt.so.13 cublasLt HINTS ${nvidia_library_dirs} /usr/local/cuda/lib64 REQUIRED)
  add_library(libcublaslt INTERFACE)
  target_include_directories(libcublaslt SYSTEM INTERFACE ${nvidia_include_dirs})
  target_link_libraries(libcublaslt INTERFACE "${CUBLASLT}" "${CUDART}")

  add_library(libtorch_cuda INTERFACE)
  target_compile_definitions(libtorch_cuda INTERFACE USE_C10D_NCCL)
  # Loaded for the operations that it registers, though no symbol of it may be named. One item, so that CMake
  # keeps the flags around it.
  target_link_libraries(libtorch_cuda INTERFACE libc10_cuda
                        "-Wl,--push-state,--no-as-needed,${LIBTORCH_DIR}/lib/libtorch_cuda.so,--pop-state")
endif()

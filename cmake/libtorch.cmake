# LibTorch from the pip wheel, as imported targets. find_package(Torch) is not used: it insists on a CUDA toolkit.
# Defines: libtorch (tensors, autograd, c10d with Gloo) and, with FLOWSHARD_CUDA, libtorch_cuda (CUDA, cuDNN, NCCL).

if(NOT EXISTS "${LIBTORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LIBTORCH_DIR='${LIBTORCH_DIR}' holds no LibTorch. Run scripts/setup.sh, then scripts/build.sh.")
endif()
file(GLOB nvidia_library_dirs "${LIBTORCH_DIR}/../nvidia/*/lib")

# The wheel bundles its own fmt headers without the library. Ours must come first: one fmt in the whole program.
find_path(fmt_include_dir fmt/format.h PATHS /usr/include NO_DEFAULT_PATH REQUIRED)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/include_first")
file(CREATE_LINK "${fmt_include_dir}/fmt" "${CMAKE_BINARY_DIR}/include_first/fmt" SYMBOLIC)

add_library(libtorch INTERFACE)
target_include_directories(libtorch SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/include_first" "${LIBTORCH_DIR}/include" "${LIBTORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
target_link_directories(libtorch INTERFACE "${LIBTORCH_DIR}/lib")
# The wheel exports parts of an older libstdc++ (std::filesystem), which crash in place of ours: ours must come first.
target_link_libraries(libtorch INTERFACE -Wl,--no-as-needed stdc++ torch torch_cpu c10 -Wl,--as-needed)
target_link_options(libtorch INTERFACE -Wl,--unresolved-symbols=ignore-in-shared-libs
                    "-Wl,-rpath,${LIBTORCH_DIR}/lib")

add_library(libtorch_cuda INTERFACE)
target_link_libraries(libtorch_cuda INTERFACE libtorch -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed)
target_compile_definitions(libtorch_cuda INTERFACE USE_C10D_NCCL)
foreach(dir IN LISTS nvidia_library_dirs)
  target_link_options(libtorch_cuda INTERFACE "-Wl,-rpath,${dir}")
  target_link_directories(libtorch_cuda INTERFACE "${dir}")
endforeach()
file(GLOB nvidia_include_dirs "${LIBTORCH_DIR}/../nvidia/*/include")
target_include_directories(libtorch_cuda SYSTEM INTERFACE ${nvidia_include_dirs})

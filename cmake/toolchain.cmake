# Compiler launcher, linker, warnings and the CUDA compiler.

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(FLOWSHARD_CUDA STREQUAL "AUTO")
  # The compiler that scripts/setup.sh installs beside LibTorch, or else the toolkit of the machine.
  find_program(NVCC nvcc HINTS "${LIBTORCH_DIR}/../nvidia/cu13/bin" /usr/local/cuda/bin)
  if(NVCC)
    set(FLOWSHARD_CUDA ON)
    set(CMAKE_CUDA_COMPILER "${NVCC}")
  else()
    set(FLOWSHARD_CUDA OFF)
    message(STATUS "nvcc not found: building without the CUDA kernels")
  endif()
endif()
if(FLOWSHARD_CUDA)
  if(CMAKE_CUDA_COMPILER MATCHES "/nvidia/cu13/")
    string(APPEND CMAKE_CUDA_FLAGS " -L${LIBTORCH_DIR}/../nvidia/cu13/lib")  # its own profile names lib64
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # cmake/libtorch.cmake links the one that LibTorch uses
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc takes it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
endif()

# Warnings for our own code only: third-party headers are SYSTEM includes. They are g++'s: clang, which builds the
# fuzzers, has others.
add_library(flowshard_warnings INTERFACE)
target_compile_options(flowshard_warnings INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wall -Wextra -Wconversion -Werror -Wno-sign-conversion -Winvalid-pch>)

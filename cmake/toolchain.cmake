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
  find_program(NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NVCC)
    set(FLOWSHARD_CUDA ON)
    set(CMAKE_CUDA_COMPILER "${NVCC}")
  else()
    set(FLOWSHARD_CUDA OFF)
    message(STATUS "nvcc not found: building without the CUDA kernels")
  endif()
endif()
if(FLOWSHARD_CUDA)
  enable_language(CUDA)
endif()

# Warnings for our own code only: third-party headers are SYSTEM includes.
add_library(flowshard_warnings INTERFACE)
target_compile_options(flowshard_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Werror -Wno-sign-conversion -Winvalid-pch>)

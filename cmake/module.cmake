# flowshard_module(NAME ... [SOURCES ...] [TESTS ...] [GPU_TESTS ...] [DEPS modules...] [LIBRARIES ...] [TORCH])
#
# A module is one folder of src/ and one static library flowshard_NAME. DEPS are other modules, LIBRARIES outside
# ones. TORCH links LibTorch and takes the shared precompiled header. TESTS become one program, flowshard_NAME_test,
# run by ctest under the label `unit`. GPU_TESTS become flowshard_NAME_gpu_test under the label `gpu`, which ctest
# reports as skipped on a machine without a GPU.
#
# -fpch-preprocess lets ccache cache the files that use the precompiled header, and the header itself.

find_package(GTest REQUIRED)

add_library(flowshard_torch_pch OBJECT "${CMAKE_SOURCE_DIR}/cmake/torch_pch.cpp")
target_link_libraries(flowshard_torch_pch PRIVATE libtorch flowshard_warnings)
target_compile_options(flowshard_torch_pch PRIVATE -fpch-preprocess)
target_precompile_headers(flowshard_torch_pch PRIVATE "${CMAKE_SOURCE_DIR}/cmake/torch_pch.h")

function(flowshard_use_torch target visibility)
  target_link_libraries(${target} ${visibility} libtorch)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  target_precompile_headers(${target} REUSE_FROM flowshard_torch_pch)
endfunction()

# For programs that run on a GPU where there is one.
function(flowshard_use_gpu target)
  if(FLOWSHARD_CUDA)
    target_link_libraries(${target} PRIVATE libtorch_cuda)
  endif()
endfunction()

function(flowshard_module)
  cmake_parse_arguments(M "TORCH" "NAME" "SOURCES;TESTS;GPU_TESTS;DEPS;LIBRARIES" ${ARGN})
  set(target flowshard_${M_NAME})
  list(TRANSFORM M_DEPS PREPEND flowshard_)
  add_library(${target} STATIC ${M_SOURCES})
  target_include_directories(${target} PUBLIC "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${target} PUBLIC ${M_DEPS} ${M_LIBRARIES} PRIVATE flowshard_warnings)
  if(M_TORCH)
    flowshard_use_torch(${target} PUBLIC)
  endif()

  if(FLOWSHARD_TESTS AND M_TESTS)
    add_executable(${target}_test ${M_TESTS})
    target_link_libraries(${target}_test PRIVATE ${target} GTest::gtest_main flowshard_warnings)
    if(M_TORCH)
      flowshard_use_torch(${target}_test PRIVATE)
    endif()
    add_test(NAME ${M_NAME} COMMAND ${target}_test)
    set_tests_properties(${M_NAME} PROPERTIES LABELS unit TIMEOUT 300)
  endif()

  if(FLOWSHARD_TESTS AND M_GPU_TESTS)
    add_executable(${target}_gpu_test ${M_GPU_TESTS} "${CMAKE_SOURCE_DIR}/tests/gpu_test_main.cpp")
    target_link_libraries(${target}_gpu_test PRIVATE ${target} GTest::gtest flowshard_warnings)
    flowshard_use_torch(${target}_gpu_test PRIVATE)
    flowshard_use_gpu(${target}_gpu_test)
    add_test(NAME ${M_NAME}_gpu COMMAND ${target}_gpu_test)
    set_tests_properties(${M_NAME}_gpu PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77)
  endif()
endfunction()

# Helpers that give every target of the project the same language level, warnings and sanitizers.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# The flags of every C++ translation unit of the project; private, so that a consumer keeps its own.
function(kvtier_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                        UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include)")
  # No contraction into FMA: the scalar and the vector kernels must round alike where ids depend on it.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wsign-conversion;-Wshadow;-ffp-contract=off>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KVTIER_WERROR}>>:-Werror>)
  # GCC 12 sees overlapping copies in `"literal" + std::string` that are not there.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  # Where one unit is many files, names of one file hide, or are hidden by, another's, and anonymous namespaces seem
  # to be a header's. `release` compiles each file alone, with these warnings.
  if(CMAKE_UNITY_BUILD)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow;-Wno-subobject-linkage>)
  endif()
  foreach(sanitizer IN LISTS KVTIER_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizer};-fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${sanitizer})
  endforeach()
  if("undefined" IN_LIST KVTIER_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  endif()
endfunction()

# kvtier_kernels(file... FLAGS flag...): source files of one instruction set, compiled with its flags.
# Optimised in every configuration: unoptimised intrinsics make tests crawl, and functions that are not inlined
# could be shared with files compiled for less. UBSan finds nothing in intrinsics, and its checks in every
# unrolled statement double or triple the time that these files take to compile; ASan and TSan watch them.
function(kvtier_kernels)
  cmake_parse_arguments(KERNELS "" "" "FLAGS" ${ARGN})
  # GCC 12 mistakes its own intrinsics' undefined vectors for uninitialised variables.
  set_source_files_properties(${KERNELS_UNPARSED_ARGUMENTS} PROPERTIES COMPILE_OPTIONS
    "${KERNELS_FLAGS};$<IF:$<BOOL:${KVTIER_SANITIZE}>,-O2;-fno-sanitize=undefined,-O3>;$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")
endfunction()

# kvtier_room(name SOURCES ... PUBLIC_HEADERS ... LINK ... PRIVATE_LINK ...): one library per top-level
# folder, `kvtier_<name>` with the alias `kvtier::<name>`. Headers are included from the project's root.
function(kvtier_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;PUBLIC_HEADERS;LINK;PRIVATE_LINK" ${ARGN})
  add_library(kvtier_${name} STATIC ${ROOM_SOURCES})
  add_library(kvtier::${name} ALIAS kvtier_${name})
  kvtier_compile_options(kvtier_${name})
  set_target_properties(kvtier_${name} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME kvtier_${name})
  target_sources(kvtier_${name} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
                 FILES ${ROOM_PUBLIC_HEADERS})
  target_link_libraries(kvtier_${name} PUBLIC ${ROOM_LINK} Threads::Threads PRIVATE ${ROOM_PRIVATE_LINK})
  set_property(GLOBAL APPEND PROPERTY KVTIER_ROOMS kvtier_${name})
endfunction()

# kvtier_test_options(target): kvtier_compile_options, and GoogleTest, for what only tests contain.
function(kvtier_test_options target)
  kvtier_compile_options(${target})
  target_link_libraries(${target} PRIVATE GTest::gmock)
  # UBSan's checks of pointers double the time to compile GoogleTest's templates; ASan sees most of what they do.
  if("undefined" IN_LIST KVTIER_SANITIZE)
    target_compile_options(${target} PRIVATE -fno-sanitize=alignment,null,object-size,vptr)
  endif()
  if(KVTIER_PRECOMPILE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)  # ccache does not cache what uses it
    # The first target compiles GoogleTest's headers, the others share them: -fPIC in executables too.
    target_compile_options(${target} PRIVATE -fPIC)
    get_property(owner GLOBAL PROPERTY KVTIER_TEST_HEADERS)
    if(owner)
      target_precompile_headers(${target} REUSE_FROM ${owner})
    else()
      target_precompile_headers(${target} PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
      set_property(GLOBAL PROPERTY KVTIER_TEST_HEADERS ${target})
    endif()
  endif()
endfunction()

# kvtier_test(name SOURCES ... LINK ... LABELS ...): a GoogleTest binary, each case a ctest of its own. Its
# folder is a label too: `ctest -L tests/cpu`.
# WHOLE: one ctest for the binary, for suites whose cases share an expensive set-up.
function(kvtier_test name)
  cmake_parse_arguments(TEST "WHOLE" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  kvtier_test_options(${name})
  target_link_libraries(${name} PRIVATE ${TEST_LINK} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE KVTIER_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # The tsan preset builds and runs these only.
  if("concurrent" IN_LIST TEST_LABELS)
    if(NOT TARGET concurrent_tests)
      add_custom_target(concurrent_tests)
    endif()
    add_dependencies(concurrent_tests ${name})
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}"
             OUTPUT_VARIABLE folder)
  if(TEST_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    # The longest start first, so that none runs alone at the end.
    set_tests_properties(${name} PROPERTIES LABELS "${folder};${TEST_LABELS}" TIMEOUT 600 COST 100)
    return()
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 300)
  # Not among the PROPERTIES above: gtest_discover_tests loses all but the first entry of a list.
  file(CONFIGURE OUTPUT ${name}_labels.cmake @ONLY CONTENT [=[
if(@name@_TESTS)
  set_tests_properties(${@name@_TESTS} PROPERTIES LABELS "@folder@;@TEST_LABELS@")
endif()
]=])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
               "${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake")
endfunction()

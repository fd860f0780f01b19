# Installs the build into a folder of its own, then builds and runs the consumer against it: by find_package, and
# by pkg-config. Variables: BUILD_DIR, WORK_DIR, CONFIG, GENERATOR, CXX, LIBDIR.
set(prefix "${WORK_DIR}/prefix")
set(consumer "${CMAKE_CURRENT_LIST_DIR}/consumer")
file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${WORK_DIR}")

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  message(STATUS "${what}: ok")
endfunction()

run("install" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}" --config "${CONFIG}")

# The build tree must not leak into the package.
file(GLOB_RECURSE package_files "${prefix}/${LIBDIR}/cmake/*" "${prefix}/${LIBDIR}/pkgconfig/*")
foreach(package_file IN LISTS package_files)
  file(READ "${package_file}" text)
  string(FIND "${text}" "${BUILD_DIR}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "${package_file} names the build folder ${BUILD_DIR}")
  endif()
endforeach()

run("configure" "${CMAKE_COMMAND}" -S "${consumer}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
    "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_PREFIX_PATH=${prefix}")
run("build" "${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${CONFIG}")
run("run consumer" "${WORK_DIR}/build/consumer")
run("run example" "${WORK_DIR}/build/example")

set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig:$ENV{PKG_CONFIG_PATH}")
execute_process(COMMAND pkg-config --cflags --libs kvtier OUTPUT_VARIABLE flags
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run("build by pkg-config" "${CXX}" -std=c++20 "${consumer}/../example.cpp"
    -o "${WORK_DIR}/example_by_pkg_config" ${flags})
run("run example built by pkg-config" "${WORK_DIR}/example_by_pkg_config")

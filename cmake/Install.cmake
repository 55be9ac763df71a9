# What a C++ program needs: `cmake --install` puts headers, two archives, find_package and pkg-config files into a
# prefix that may be moved. The folders of the house become
#   weightcast::endpoint    the data plane (Endpoint, Connection, memory); needs libcrypto and threads
#   weightcast::weightcast  all of the public API; needs libssl and zstd too
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(weightcast_archive name export_name)
  set(target weightcast_archive_${name})
  add_library(${target} STATIC)
  foreach(folder IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:weightcast_${folder}>)
    if(TARGET weightcast_${folder}_apart)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:weightcast_${folder}_apart>)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX
    OUTPUT_NAME ${name}
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/archives
    EXPORT_NAME ${export_name})
  target_compile_features(${target} INTERFACE cxx_std_20)
  install(TARGETS ${target} EXPORT weightcast ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

weightcast_archive(weightcast_endpoint endpoint
  base stream memory trace drivers_ibverbs drivers_cuda kernels device topology transport_tcp transport_shm transport_verbs transport
  endpoint_transfers endpoint)
target_link_libraries(weightcast_archive_weightcast_endpoint INTERFACE OpenSSL::Crypto Threads::Threads)
weightcast_archive(weightcast weightcast
  plan digest protocol http control worker)
target_link_libraries(weightcast_archive_weightcast INTERFACE
  weightcast_archive_weightcast_endpoint OpenSSL::SSL $<INSTALL_INTERFACE:PkgConfig::weightcast_zstd>)

install(TARGETS weightcast RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/weightcast DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/weightcast)
install(EXPORT weightcast NAMESPACE weightcast:: FILE weightcastTargets.cmake DESTINATION ${package})
configure_package_config_file(cmake/weightcastConfig.cmake.in ${PROJECT_BINARY_DIR}/weightcastConfig.cmake
                              INSTALL_DESTINATION ${package})
# Before 1.0 each minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weightcastConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weightcastConfig.cmake ${PROJECT_BINARY_DIR}/weightcastConfigVersion.cmake
        DESTINATION ${package})

file(RELATIVE_PATH PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" PREFIX_FROM_PC ${PREFIX_FROM_PC})
foreach(name weightcast weightcast-endpoint)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

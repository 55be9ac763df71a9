find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(nlohmann_json REQUIRED)

# Header-only in Debian's sense: spdlog and fmt have no static library worth linking.
find_path(SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(thirdparty_spdlog INTERFACE)
target_compile_definitions(thirdparty_spdlog INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
target_include_directories(thirdparty_spdlog SYSTEM INTERFACE ${SPDLOG_INCLUDE})

find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
add_library(thirdparty_cli11 INTERFACE)
target_include_directories(thirdparty_cli11 SYSTEM INTERFACE ${CLI11_INCLUDE})

find_path(BOOST_INCLUDE boost/beast.hpp REQUIRED)  # Header-only: its HTTP, on its sockets.
add_library(thirdparty_boost INTERFACE)
target_compile_definitions(thirdparty_boost INTERFACE BOOST_ASIO_NO_DEPRECATED)
target_include_directories(thirdparty_boost SYSTEM INTERFACE ${BOOST_INCLUDE})

find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
add_library(thirdparty_xxhash INTERFACE)
target_compile_definitions(thirdparty_xxhash INTERFACE XXH_INLINE_ALL)
target_include_directories(thirdparty_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE})

# name: the imported target; library: what follows -l. Static when WEIGHTCAST_STATIC.
function(weightcast_library target library)
  if(WEIGHTCAST_STATIC)
    find_library(${target}_FILE NAMES lib${library}.a REQUIRED)
  else()
    find_library(${target}_FILE NAMES ${library} REQUIRED)
  endif()
  # Imported, not a bare file: so the linker sees a library before what that one needs.
  add_library(${target} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${target}_FILE})
endfunction()
weightcast_library(thirdparty_zstd zstd)
weightcast_library(thirdparty_crypto crypto)
weightcast_library(thirdparty_ssl ssl)
target_link_libraries(thirdparty_ssl INTERFACE thirdparty_crypto)

if(WEIGHTCAST_TESTS)
  find_package(GTest REQUIRED)
  find_path(RAPIDCHECK_INCLUDE rapidcheck.h REQUIRED)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
  add_library(thirdparty_rapidcheck INTERFACE)
  target_include_directories(thirdparty_rapidcheck SYSTEM INTERFACE ${RAPIDCHECK_INCLUDE})
  target_link_libraries(thirdparty_rapidcheck INTERFACE ${RAPIDCHECK_LIBRARY})
endif()

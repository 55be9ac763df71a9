find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json REQUIRED)

# Header-only in Debian's sense: spdlog and fmt have no static library worth linking.
find_path(SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(thirdparty_spdlog INTERFACE)
target_compile_definitions(thirdparty_spdlog INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
target_include_directories(thirdparty_spdlog SYSTEM INTERFACE ${SPDLOG_INCLUDE})

find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
add_library(thirdparty_cli11 INTERFACE)
target_include_directories(thirdparty_cli11 SYSTEM INTERFACE ${CLI11_INCLUDE})

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
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE ${${target}_FILE})
endfunction()
weightcast_library(thirdparty_zstd zstd)
weightcast_library(thirdparty_crypto crypto)
weightcast_library(thirdparty_ssl ssl)
target_link_libraries(thirdparty_ssl INTERFACE thirdparty_crypto)

pkg_check_modules(GRPC REQUIRED grpc++ protobuf)
find_program(PROTOC protoc REQUIRED)
find_program(PROTOC_GRPC_CPP grpc_cpp_plugin REQUIRED)
add_library(thirdparty_grpc INTERFACE)
target_include_directories(thirdparty_grpc SYSTEM INTERFACE ${GRPC_INCLUDE_DIRS})
if(WEIGHTCAST_STATIC)
  # Debian's static archives do not say in which order they want each other: a group serves.
  # libsystemd has no static form and gRPC does not use it here.
  set(grpc_static ${GRPC_STATIC_LDFLAGS})
  list(REMOVE_ITEM grpc_static -lsystemd -pthread -lpthread -ldl -lrt -lm)
  # Ubuntu names the archive of c-ares libcares_static.a, Debian libcares.a.
  find_library(CARES_ARCHIVE NAMES libcares.a libcares_static.a REQUIRED)
  list(TRANSFORM grpc_static REPLACE "^-lcares$" "${CARES_ARCHIVE}")
  target_link_libraries(thirdparty_grpc INTERFACE
    -Wl,--start-group -Wl,-Bstatic ${grpc_static} -Wl,--end-group -Wl,-Bdynamic -ldl -lm Threads::Threads)
else()
  target_link_libraries(thirdparty_grpc INTERFACE ${GRPC_LDFLAGS} Threads::Threads)
endif()

if(WEIGHTCAST_TESTS)
  find_package(GTest REQUIRED)
  find_path(RAPIDCHECK_INCLUDE rapidcheck.h REQUIRED)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
  add_library(thirdparty_rapidcheck INTERFACE)
  target_include_directories(thirdparty_rapidcheck SYSTEM INTERFACE ${RAPIDCHECK_INCLUDE})
  target_link_libraries(thirdparty_rapidcheck INTERFACE ${RAPIDCHECK_LIBRARY})
endif()

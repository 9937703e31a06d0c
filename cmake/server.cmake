# h3av serve: HTTP, jobs, workers and the page. Linked into the program only: the library opens no
# socket. The page's files and the API's description become read-only data (.incbin).
pkg_check_modules(MHD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
enable_language(ASM)

set(server_assets html server/page/index.html css server/page/app.css js server/page/app.js
                  svg server/page/icon.svg openapi docs/openapi.json)
set(server_asm ".section .note.GNU-stack,\"\",%progbits\n.section .rodata\n")
set(server_asset_paths)
while(server_assets)
    list(POP_FRONT server_assets name file)
    set(path ${CMAKE_SOURCE_DIR}/${file})
    string(APPEND server_asm ".globl srv_file_${name}\n.hidden srv_file_${name}\nsrv_file_${name}:\n"
           ".incbin \"${path}\"\n.globl srv_file_${name}_end\n.hidden srv_file_${name}_end\n"
           "srv_file_${name}_end:\n.byte 0\n")
    list(APPEND server_asset_paths ${path})
endwhile()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/server_files.S CONTENT "${server_asm}" @ONLY)
set_source_files_properties(${CMAKE_BINARY_DIR}/server_files.S PROPERTIES
                            OBJECT_DEPENDS "${server_asset_paths}")

# A queue on PostgreSQL (--db), when libpq is there.
pkg_check_modules(PQ IMPORTED_TARGET libpq)
set(server_pg server/store_pg_absent.c)
if(PQ_FOUND)
    set(server_pg server/store_pg.c)
endif()

add_library(h3_server OBJECT server/body.c server/child.c server/content.c server/events.c
            server/fault.c server/http.c server/hub.c server/metrics.c server/multipart.c
            server/object.c server/page.c server/params.c server/routes.c server/server.c
            server/store.c ${server_pg} server/util.c server/worker.c server/worker_main.c
            ${CMAKE_BINARY_DIR}/server_files.S)
target_include_directories(h3_server PUBLIC server include)
target_link_libraries(h3_server PUBLIC PkgConfig::MHD PkgConfig::SQLITE PkgConfig::JANSSON
                      Threads::Threads)
if(PQ_FOUND)
    target_link_libraries(h3_server PUBLIC PkgConfig::PQ)
endif()
if(TARGET h3av)
    target_link_libraries(h3av PRIVATE h3_server)
endif()

# The form parser: every cut and many changes of some forms as an ordinary test, and (H3_FUZZ, see
# cmake/fuzz.cmake for the flags) as a libFuzzer program. tests/server/run.sh tests the rest.
add_executable(test_multipart tests/server/fuzz_multipart.c server/multipart.c)
target_include_directories(test_multipart PRIVATE server)
add_test(NAME server_multipart COMMAND test_multipart)
if(H3_FUZZ)
    add_executable(fuzz_multipart tests/server/fuzz_multipart.c server/multipart.c)
    target_include_directories(fuzz_multipart PRIVATE server)
    target_compile_definitions(fuzz_multipart PRIVATE H3_LIBFUZZER)
    target_link_options(fuzz_multipart PRIVATE -fsanitize=fuzzer)
endif()

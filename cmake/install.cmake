# make install: program, library, headers, pkg-config file, man page.
include(GNUInstallDirs)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/h3av.1 COMMAND h3av help --man > ${CMAKE_BINARY_DIR}/h3av.1
                   DEPENDS h3av VERBATIM)
add_custom_target(man ALL DEPENDS ${CMAKE_BINARY_DIR}/h3av.1)

# The modules a static libh3av.a needs beside itself.
set(H3_PC_REQUIRES "jansson libavformat libavcodec libavutil libswscale libswresample")
set(H3_PC_LIBS "-lm -lpthread -fopenmp")
configure_file(cmake/h3av.pc.in ${CMAKE_BINARY_DIR}/h3av.pc @ONLY)

install(TARGETS h3av RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS h3 ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/h3av DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/h3av.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_BINARY_DIR}/h3av.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

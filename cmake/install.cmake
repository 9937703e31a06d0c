# make install: program, library, headers, pkg-config file, man page.
include(GNUInstallDirs)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/h3av.1 COMMAND h3av help --man > ${CMAKE_BINARY_DIR}/h3av.1
                   DEPENDS h3av VERBATIM)
add_custom_target(man ALL DEPENDS ${CMAKE_BINARY_DIR}/h3av.1)

# What libh3av.a needs beside itself. Not as .private: there is no shared libh3av, and pkg-config --static would ask
# for everything a static FFmpeg needs, which Debian does not install.
set(H3_PC_REQUIRES "jansson libavformat libavcodec libavutil libswscale libswresample")
set(H3_PC_LIBS "-lm -lpthread -fopenmp")
set(h3_pc_extra ${cuda_link} ${MPI_LINK_LIBRARIES}) # empty without those backends
if(TARGET h3_nccl)
    list(APPEND h3_pc_extra ${H3_NCCL_LIB})
endif()
foreach(lib ${h3_pc_extra})
    if(NOT IS_ABSOLUTE ${lib})
        string(PREPEND lib -l)
    endif()
    string(APPEND H3_PC_LIBS " ${lib}")
endforeach()
# Relative to the file itself: `cmake --install --prefix` and a moved tree keep working.
file(RELATIVE_PATH H3_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" H3_PC_PREFIX "${H3_PC_PREFIX}")
configure_file(cmake/h3av.pc.in ${CMAKE_BINARY_DIR}/h3av.pc @ONLY)

install(TARGETS h3av RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS h3 ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY include/h3av DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/h3av.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_BINARY_DIR}/h3av.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# Ranks over MPI and NCCL. Both are optional: without them the features are off and say so by name
# when they are asked for. Included after tensor.cmake.
option(H3_MPI "Ranks started by mpirun, when MPI is installed" ON)
option(H3_NCCL "Exchanges between GPUs, when NCCL and CUDA are installed" ON)

if(H3_MPI)
    # pkg-config rather than FindMPI: no C++ bindings, no compiler wrappers.
    pkg_check_modules(MPI IMPORTED_TARGET ompi-c)
    if(NOT MPI_FOUND)
        pkg_check_modules(MPI IMPORTED_TARGET mpich)
    endif()
endif()
if(MPI_FOUND)
    room(mpi DIR src/backend/mpi FILES comm_mpi.c USES tensor base LIBS PkgConfig::MPI)
    target_compile_definitions(h3_tensor PRIVATE H3_HAVE_MPI=1)
    target_sources(h3_backends INTERFACE $<TARGET_OBJECTS:h3_mpi>)
    target_link_libraries(h3_backends INTERFACE PkgConfig::MPI)
else()
    message(STATUS "MPI: not found; mpirun will be refused (ranks on one host need no MPI)")
endif()

# Windows between the GPUs of a host.
if(TARGET h3_cuda)
    room(peer DIR src/backend/peer FILES comm_peer.c USES tensor base LIBS $<$<NOT:$<BOOL:${H3_CUDA_EMULATE}>>:${H3_CUDART}>)
    target_include_directories(h3_peer SYSTEM PRIVATE ${H3_CUDA_INCLUDE})
    target_compile_definitions(h3_tensor PRIVATE H3_HAVE_PEER=1)
    target_sources(h3_backends INTERFACE $<TARGET_OBJECTS:h3_peer>)
endif()

# The emulator has both (tests/gpu/emu).
if(H3_NCCL AND TARGET h3_cuda AND H3_CUDA_EMULATE AND EXISTS ${H3_CUDA_INCLUDE}/nccl.h)
    room(nccl DIR src/backend/nccl FILES comm_nccl.c USES tensor base)
    target_sources(h3_cuda_emu PRIVATE tests/gpu/emu/nccl.cc)
    target_include_directories(h3_nccl SYSTEM PRIVATE ${H3_CUDA_INCLUDE})
    target_compile_definitions(h3_tensor PRIVATE H3_HAVE_NCCL=1)
    target_sources(h3_backends INTERFACE $<TARGET_OBJECTS:h3_nccl>)
endif()

# NCCL beside the CUDA backend: from the system, a CUDA folder, NCCL_HOME or -DH3_NCCL_INCLUDE/_LIB.
if(H3_NCCL AND TARGET h3_cuda AND NOT H3_CUDA_EMULATE)
    find_path(H3_NCCL_INCLUDE nccl.h HINTS ${cuda_root}/include ENV NCCL_HOME PATH_SUFFIXES include)
    find_library(H3_NCCL_LIB NAMES nccl libnccl.so.2 HINTS ${cuda_libs} ENV NCCL_HOME PATH_SUFFIXES lib lib64)
    if(H3_NCCL_INCLUDE AND H3_NCCL_LIB)
        room(nccl DIR src/backend/nccl FILES comm_nccl.c USES tensor base LIBS ${H3_NCCL_LIB} ${H3_CUDART})
        target_include_directories(h3_nccl SYSTEM PRIVATE ${H3_NCCL_INCLUDE} ${H3_CUDA_INCLUDE})
        target_compile_definitions(h3_tensor PRIVATE H3_HAVE_NCCL=1)
        target_sources(h3_backends INTERFACE $<TARGET_OBJECTS:h3_nccl>)
        target_link_libraries(h3_backends INTERFACE ${H3_NCCL_LIB})
    else()
        message(STATUS "NCCL: not found; GPUs of several ranks exchange by way of the host")
    endif()
endif()

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

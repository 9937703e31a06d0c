# decode.c belongs here because every backend decodes weights; it knows bytes, not files.
set(tensor_files)
foreach(f tensor.c dev.c comm.c comm_local.c counted.c ops_cost.c tap.c decode.c ops_ref.c ops_plan.c)
    if(EXISTS ${CMAKE_SOURCE_DIR}/src/tensor/${f})
        list(APPEND tensor_files ${f})
    endif()
endforeach()
room(tensor FILES ${tensor_files} USES base)

# Several ranks against one. Without a launcher the ranks are forked; with mpirun the same program runs
# under it.
if(TARGET h3_pipeline)
    add_executable(h3av-ranks tests/mpi/ranks.c ${synth_files})
    target_include_directories(h3av-ranks PRIVATE src/pipeline)
    target_link_libraries(h3av-ranks PRIVATE h3_builtin h3_sampler h3_nets_dit h3_nets_audio_vae h3_weights h3_plan h3_tensor h3_base h3_backends)
    add_test(NAME ranks COMMAND ${CMAKE_SOURCE_DIR}/tests/mpi/ranks.sh $<TARGET_FILE:h3av-ranks>
             $<TARGET_FILE:h3av> $<IF:$<BOOL:${H3_SANITIZE}>,brief,all>)
    set_tests_properties(ranks PROPERTIES SKIP_RETURN_CODE 77)
    if(H3_CUDA_EMULATE)
        add_test(NAME ranks_gpu COMMAND ${CMAKE_SOURCE_DIR}/tests/mpi/ranks_gpu.sh $<TARGET_FILE:h3av-ranks>)
    endif()
endif()

# Many servers, one queue.
if(TARGET h3_server AND TARGET h3av AND PQ_FOUND)
    add_executable(h3av-queue tests/mpi/queue.c server/store.c server/store_pg.c server/util.c)
    target_include_directories(h3av-queue PRIVATE server include)
    target_link_libraries(h3av-queue PRIVATE PkgConfig::PQ PkgConfig::SQLITE PkgConfig::JANSSON Threads::Threads m)
    add_test(NAME queue COMMAND ${CMAKE_SOURCE_DIR}/tests/mpi/queue.sh $<TARGET_FILE:h3av-queue> $<TARGET_FILE:h3av>
             $<IF:$<BOOL:${H3_SANITIZE}>,brief,all>)
    set_tests_properties(queue PROPERTIES SKIP_RETURN_CODE 77)
endif()

room(sampler FILES blame.c sampler.c pack.c schedule_rows.c USES nets_dit plan weights tensor base)
if(CMOCKA_FOUND)
    unit_test(sampler FILES tests/unit/test_sampler.c USES sampler nets_dit plan weights tensor base)
endif()

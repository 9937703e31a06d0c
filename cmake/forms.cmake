# Published forms of checkpoints, run: the networks off every sample.
if(CMOCKA_FOUND AND TARGET h3_nets_dit AND TARGET h3_nets_encoder)
    unit_test(forward_forms FILES tests/unit/test_forward_forms.c
              USES nets_dit nets_encoder weights tensor base LIBS PkgConfig::JANSSON m)
endif()

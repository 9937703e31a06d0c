set(encoder_files encoder.c encoder_config.c encoder_tables.c encoder_text.c encoder_vision.c)
room(nets_encoder DIR src/nets FILES ${encoder_files} USES weights tensor base
     LIBS PkgConfig::JANSSON m)
if(CMOCKA_FOUND)
    unit_test(encoder FILES tests/unit/test_encoder.c ${test_models} USES nets_encoder weights tensor base
              LIBS PkgConfig::JANSSON m)
endif()

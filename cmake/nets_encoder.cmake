room(nets_encoder DIR src/nets
     FILES encoder.c encoder_config.c encoder_tables.c encoder_text.c encoder_vision.c
     USES weights tensor base LIBS PkgConfig::JANSSON m)

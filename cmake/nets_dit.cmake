set(dit_files attention.c dit.c dit_config.c dit_mod.c dit_spec.c dit_state.c)
room(nets_dit DIR src/nets FILES ${dit_files} USES weights tensor base LIBS PkgConfig::JANSSON m)

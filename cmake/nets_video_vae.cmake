# The video autoencoder: decoder (tiles of a vision transformer) and encoder (causal 3D network).
room(nets_video_vae DIR src/nets
     FILES video_vae.c video_vae_dec.c video_vae_enc.c video_vae_tiles.c
     USES weights tensor base plan LIBS PkgConfig::JANSSON)
if(CMOCKA_FOUND)
    unit_test(video_vae FILES tests/unit/test_video_vae.c ${test_models} USES nets_video_vae weights backends tensor base plan
              LIBS PkgConfig::JANSSON)
endif()

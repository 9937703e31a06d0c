# The audio autoencoder: latents to 32 kHz samples and back.
room(nets_audio_vae DIR src/nets FILES audio_vae.c audio_vae_dec.c audio_vae_enc.c
     USES weights tensor base plan LIBS PkgConfig::JANSSON m)
if(CMOCKA_FOUND)
    unit_test(audio_vae FILES tests/unit/test_audio_vae.c ${test_models} USES nets_audio_vae weights backends tensor base plan
              LIBS PkgConfig::JANSSON)
endif()

/**
 * The same request again and again with one engine: device memory at most must be what it was the
 * first time, and the result too.
 *
 *   h3av-gpu-repeat DEVICE RUNS FOLDER [MODEL]      pictures and sound go to FOLDER and are removed
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <h3av/h3av.h>

static void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    char file[512];

    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        unlink(file); // fails for . and ..
    }
    if (d) closedir(d);
    rmdir(path);
}

int main(int argc, char **argv)
{
    h3_engine_opts eo = h3_engine_default();
    h3_request rq = h3_request_default();
    h3_result rs, first = {0};
    h3_engine *e = NULL;
    char frames[256], wav[256];
    int n_bad = 0;

    if (argc < 4) {
        fprintf(stderr, "usage: %s DEVICE RUNS FOLDER [MODEL]\n", argv[0]);
        return 2;
    }
    snprintf(frames, sizeof frames, "%s/frames", argv[3]);
    snprintf(wav, sizeof wav, "%s/sound.wav", argv[3]);
    eo.device = argv[1];
    if (argc > 4) eo.model = argv[4];
    eo.keep_loaded = getenv("H3_KEEP") != NULL;
    rq.prompt = "a red circle moves from left to right, a low tone";
    rq.width = rq.height = 64;
    rq.frames = 39;
    rq.steps = 5;
    rq.seed = 7;
    rq.frames_dir = frames;
    rq.frames_format = "ppm";
    rq.wav_path = wav;
    rq.lift_limits = true;
    if (h3_engine_open(&e, &eo) != H3_OK) {
        fprintf(stderr, "%s\n", h3_error());
        return 1;
    }
    for (int i = 0; i < atoi(argv[2]); i++) {
        if (h3_generate(e, &rq, &rs) != H3_OK) {
            fprintf(stderr, "run %d: %s\n", i + 1, h3_error());
            return 1;
        }
        remove_folder(frames);
        unlink(wav);
        if (i == 0) first = rs;
        printf("run %2d: %.3f s, device memory at most %.3f MiB, host %.1f MiB, latents %016llx\n",
               i + 1, rs.seconds_total, (double)rs.peak_device / 1048576,
               (double)rs.peak_rss / 1048576, (unsigned long long)rs.latent_hash);
        if (rs.latent_hash != first.latent_hash) n_bad++;
        if (rs.peak_device != first.peak_device) n_bad++;
    }
    printf("%s: peak device memory of the last run %s that of the first\n", n_bad ? "FAIL" : "ok",
           rs.peak_device == first.peak_device ? "equals" : "differs from");
    h3_engine_close(&e);
    return n_bad ? 1 : 0;
}

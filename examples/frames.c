/*
 * Frames and sound of a video in memory, as they are decoded, for a program of your own: a player,
 * a texture, another encoder. This one passes the pictures on as raw bytes:
 *
 *     cc frames.c $(pkg-config --cflags --libs h3av) -o frames
 *     ./frames "a red circle" |
 *         ffplay -f rawvideo -pixel_format rgb24 -video_size 256x256 -framerate 24 -
 *
 * usage: frames PROMPT [WIDTH HEIGHT FRAMES STEPS [SOUND]]; SOUND becomes interleaved float32 at 32
 * kHz.
 */
#include <h3av/h3av.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct sink {
    FILE *pictures, *sound;
} sink;

/* Both return whether to go on; a reader that went away ends the request. */
static bool take_frame(void *user, const h3_frame *f)
{
    sink *s = user;

    for (int y = 0; y < f->height; y++)
        if (fwrite(f->rgb + (size_t)y * f->stride, 3, (size_t)f->width, s->pictures) !=
            (size_t)f->width)
            return false;
    fprintf(stderr, "\rframe %lld of %lld", (long long)f->index + 1, (long long)f->count);
    return fflush(s->pictures) == 0;
}

static bool take_sound(void *user, const h3_sound_part *p)
{
    sink *s = user;

    for (int64_t i = 0; s->sound && i < p->n; i++) {
        const float both[2] = {p->left[i], p->right[i]};
        if (fwrite(both, sizeof both, 1, s->sound) != 1) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    sink s = {.pictures = stdout};
    h3_engine_opts eo = h3_engine_default(); // eo.model = "/models/MiniMax-H3" for the real one
    h3_request rq = h3_request_default();
    h3_engine *e = NULL;

    if (argc != 2 && argc != 6 && argc != 7) {
        fprintf(stderr, "usage: %s PROMPT [WIDTH HEIGHT FRAMES STEPS [SOUND]]\n", argv[0]);
        return 2;
    }
    rq.prompt = argv[1];
    if (argc > 5) {
        rq.width = atoi(argv[2]);
        rq.height = atoi(argv[3]);
        rq.frames = atoi(argv[4]);
        rq.steps = atoi(argv[5]);
    }
    if (argc > 6 && !(s.sound = fopen(argv[6], "wb"))) {
        perror(argv[6]);
        return 3;
    }
    rq.on_frame = take_frame; // rq.out_path and the other files may be set beside them
    rq.on_sound = take_sound;
    rq.user = &s;
    h3_status st = h3_engine_open(&e, &eo);
    if (st == H3_OK) st = h3_generate(e, &rq, NULL);
    if (st != H3_OK) fprintf(stderr, "\n%s: %s\n", argv[0], h3_error());
    h3_engine_close(&e);
    if (s.sound && fclose(s.sound) != 0 && st == H3_OK) st = H3_E_IO;
    return st == H3_OK ? 0 : 1;
}

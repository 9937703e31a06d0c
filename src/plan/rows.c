/*
 * The other forms of the same things: the padded sequence, and latents as rows.
 *
 * The padded form is not in diffusers; it is vLLM-Omni's, for attention kernels that want a
 * multiple of 64 rows.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "size.h"

static void fill_ids(h3_padded *p, const h3_layout *l)
{
    const int64_t nv = l->n_condition_video, na = l->n_condition_audio;
    for (int64_t r = l->n_rows; r < p->n_rows; r++)
        p->ids[r] = H3_ROW_PAD;
    for (int64_t i = 0; i < l->n_text; i++)
        p->ids[l->text_rows[i]] = H3_ROW_TEXT;
    for (int64_t i = 0; i < l->n_video; i++)
        p->ids[l->video_rows[i]] = i < nv ? H3_ROW_CONDITION : H3_ROW_VIDEO;
    for (int64_t i = 0; i < l->n_audio; i++)
        p->ids[l->audio_rows[i]] = i < na ? H3_ROW_AUDIO_REFERENCE : H3_ROW_AUDIO;
    p->ids[l->audio_rows[na]] = H3_ROW_AUDIO_FIRST;
    p->ids[l->video_rows[nv]] = H3_ROW_VIDEO_FIRST;
    p->ids[l->video_rows[l->n_video - 1]] = H3_ROW_VIDEO_LAST; // wins when there is one row only
}

h3_status h3_padded_create(h3_padded **out, const h3_layout *l, int64_t align)
{
    *out = NULL;
    if (align < 1 || align > 1 << 20)
        return h3_fail(H3_E_ARG, "row alignment %lld: expected 1 .. %d", (long long)align, 1 << 20);
    const int64_t S = h3_ceil_div(l->n_rows, align) * align;
    if (S > INT32_MAX)
        return h3_fail(H3_E_ARG, "%lld rows are more than a sequence can have", (long long)S);

    const size_t n = (size_t)S, head = h3_align_up(sizeof **out, 64);
    const size_t per_row = 3 * sizeof(double) + 3 * sizeof(int32_t) + 2;
    char *block = calloc(1, head + n * per_row + (size_t)(l->n_video + l->n_audio));
    if (!block) return h3_fail(H3_E_NOMEM, "no memory for %lld padded rows", (long long)S);
    h3_padded *p = (h3_padded *)(void *)block;
    p->n_rows = S;
    p->positions = (double *)(void *)(block + head);
    p->ids = (int32_t *)(void *)(p->positions + 3 * n);
    p->tags = p->ids + n;
    p->documents = p->tags + n;
    p->is_video = (uint8_t *)(p->documents + n);
    p->is_audio = p->is_video + n;
    p->is_video_target = p->is_audio + n;
    p->is_audio_target = p->is_video_target + l->n_video;

    memcpy(p->positions, l->positions, (size_t)l->n_rows * 3 * sizeof(double));
    memcpy(p->tags, l->tags, (size_t)l->n_rows * sizeof(int32_t));
    for (int64_t r = l->n_rows; r < S; r++) {
        p->tags[r] = H3_TAG_PAD;
        p->documents[r] = 1;
    }
    fill_ids(p, l);
    for (int64_t i = 0; i < l->n_video; i++) {
        p->is_video[l->video_rows[i]] = 1;
        p->is_video_target[i] = i >= l->n_condition_video;
    }
    for (int64_t i = 0; i < l->n_audio; i++) {
        p->is_audio[l->audio_rows[i]] = 1;
        p->is_audio_target[i] = i >= l->n_condition_audio;
    }
    p->cu_seqlens[1] = (int32_t)l->n_rows;
    p->cu_seqlens[2] = (int32_t)S;
    p->refiner_cu_seqlens[1] = p->refiner_cu_seqlens[2] = (int32_t)l->n_text;
    *out = p;
    return H3_OK;
}

void h3_padded_free(h3_padded **p)
{
    if (!p) return;
    free(*p);
    *p = NULL;
}

/* ---------------------------------------------------------------- latents <-> rows */

/* A latent line y of channel k meets row (frame, y / 2, x) at column 4 k + 2 (y % 2): two cells
 * that are neighbours in both layouts. */
typedef struct patch_shape {
    int64_t c, t, h, w;
} patch_shape;

static int64_t in_rows(patch_shape s, int64_t k, int64_t f, int64_t y)
{
    const int64_t row = (f * (s.h / H3_PATCH) + y / H3_PATCH) * (s.w / H3_PATCH);
    return (row * s.c + k) * H3_PATCH * H3_PATCH + y % H3_PATCH * H3_PATCH;
}

static int64_t in_latent(patch_shape s, int64_t k, int64_t f, int64_t y)
{
    return ((k * s.t + f) * s.h + y) * s.w;
}

void h3_patchify(float *rows, const float *z, int64_t c, int64_t t, int64_t h, int64_t w)
{
    const patch_shape s = {c, t, h, w};
    assert(h % H3_PATCH == 0 && w % H3_PATCH == 0);
    for (int64_t k = 0; k < c; k++)
        for (int64_t f = 0; f < t; f++)
            for (int64_t y = 0; y < h; y++) {
                float *to = rows + in_rows(s, k, f, y);
                const float *from = z + in_latent(s, k, f, y);
                for (int64_t x = 0; x < w; x += H3_PATCH, to += c * H3_PATCH * H3_PATCH)
                    memcpy(to, from + x, H3_PATCH * sizeof *to);
            }
}

void h3_unpatchify(float *z, const float *rows, int64_t c, int64_t t, int64_t h, int64_t w)
{
    const patch_shape s = {c, t, h, w};
    assert(h % H3_PATCH == 0 && w % H3_PATCH == 0);
    for (int64_t k = 0; k < c; k++)
        for (int64_t f = 0; f < t; f++)
            for (int64_t y = 0; y < h; y++) {
                float *to = z + in_latent(s, k, f, y);
                const float *from = rows + in_rows(s, k, f, y);
                for (int64_t x = 0; x < w; x += H3_PATCH, from += c * H3_PATCH * H3_PATCH)
                    memcpy(to + x, from, H3_PATCH * sizeof *to);
            }
}

void h3_audio_to_rows(float *rows, const float *z, int64_t channels, int64_t c, int64_t n)
{
    for (int64_t a = 0; a < channels; a++, rows += n * c, z += c * n)
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < c; k++)
                rows[i * c + k] = z[k * n + i];
}

void h3_audio_from_rows(float *z, const float *rows, int64_t channels, int64_t c, int64_t n)
{
    for (int64_t a = 0; a < channels; a++, rows += n * c, z += c * n)
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < c; k++)
                z[k * n + i] = rows[i * c + k];
}

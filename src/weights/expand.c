/**
 * Quantized matrices decoded once, when they are bound, into memory of the checkpoint: bf16 where
 * that holds every value exactly (a scale that is a power of two, as in MXFP8), else f32. The
 * numbers, and so the results, are those of the stored form; only where the decoding happens
 * differs.
 *
 * Matrices that a request reads once stay as they are: decoding them while they are read is the
 * same work. That is the whole text encoder, and of the DiT what only prepares a request.
 */
#include "checkpoint_impl.h"

#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "file.h"
#include "half.h"
#include "size.h"

enum { TILE_BYTES = 1 << 20 };

static bool is_read_once(const char *name)
{
    static const char *const patterns[] = {"model.*", "*.adaln_proj.*", "token_refiner.*",
                                           "condition_proj.*", "time_embedder.*"};

    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (h3_name_match(patterns[i], name)) return true;
    return false;
}

static bool is_quantized(const h3_weight_part *p)
{
    return p->encoding > H3_ENC_F16 &&
           !(p->encoding == H3_ENC_GGML && h3_ggml_type(p->ggml_type).block == 1);
}

static bool is_power_of_two(float v)
{
    return v > 0 && (h3_f32_bits(v) & 0x7fffff) == 0;
}

/* Bytes a number will probably need: known before anything is decoded. */
static size_t width_of(const h3_weight_part *p)
{
    enum { GGML_MXFP4 = 39 };
    const bool is_short =
        p->encoding == H3_ENC_MXFP8 ||
        (p->encoding == H3_ENC_FP8_SCALED && p->n_scale <= 1 && is_power_of_two(p->global)) ||
        (p->encoding == H3_ENC_NVFP4 && is_power_of_two(p->global)) ||
        (p->encoding == H3_ENC_GGML && p->ggml_type == GGML_MXFP4);
    return is_short ? 2 : 4;
}

/* All rows into `out` as bf16; false as soon as a value does not fit. */
static bool decode_short(const h3_weight_part *p, int64_t rows, float *tile, uint16_t *out)
{
    for (int64_t r = 0; r < p->rows; r += rows) {
        const int64_t n = (p->rows - r < rows ? p->rows - r : rows);
        h3_weight_decode_rows(p, r, n, tile);
        for (int64_t i = 0; i < n * p->cols; i++) {
            const uint32_t bits = h3_f32_bits(tile[i]);
            if (bits & 0xffff) return false;
            out[r * p->cols + i] = (uint16_t)(bits >> 16);
        }
    }
    return true;
}

static h3_status expand_part(h3_checkpoint *ck, const h3_item *it, h3_weight_part *p)
{
    const int64_t fit = p->cols ? TILE_BYTES / 4 / p->cols : 1, rows = fit > 0 ? fit : 1;
    size_t n, width = width_of(p);
    void *out;

    if (!h3_mul_size((size_t)p->rows, (size_t)p->cols, &n) || n > SIZE_MAX / 4) goto nomem;
    if (width == 2) {
        float *tile = malloc((size_t)(rows * p->cols) * sizeof *tile);
        out = tile ? h3_keep_alloc(&ck->keep, n * 2) : NULL;
        const bool fits = out && decode_short(p, rows, tile, out);
        free(tile);
        if (!out) goto nomem;
        if (!fits) width = 4; // the shorter block stays until the checkpoint goes
    }
    if (width == 4) {
        out = h3_keep_alloc(&ck->keep, n * 4);
        if (!out) goto nomem;
        h3_weight_decode_rows(p, 0, p->rows, out);
    }
    h3_map_done(p->data, p->bytes, false);
    *p = (h3_weight_part){.data = out,
                          .rows = p->rows,
                          .cols = p->cols,
                          .row_bytes = (size_t)p->cols * width,
                          .bytes = n * width,
                          .encoding = width == 2 ? H3_ENC_BF16 : H3_ENC_F32,
                          .full_rows = p->rows,
                          .global = 1.0f,
                          .in_scale = p->in_scale};
    return H3_OK;

nomem:
    return h3_fail(H3_E_NOMEM, "%s: no memory to decode \"%s\" at load; --quant keep needs none",
                   h3_item_file(ck, it), it->name);
}

h3_status h3_item_expand(h3_checkpoint *ck, h3_item *it, const h3_dev *d, h3_weight_part *part,
                         int n)
{
    if (ck->quant != H3_QUANT_EXPAND || d->mem != H3_HOST || is_read_once(it->name)) return H3_OK;
    for (int i = 0; i < n; i++) {
        const size_t stored = part[i].bytes;
        if (!is_quantized(&part[i])) continue;
        if (it->expanded[i]) {
            part[i] = *it->expanded[i];
            continue;
        }
        if (d->is_plan) { // counted, not done
            const size_t bytes = (size_t)(part[i].rows * part[i].cols) * width_of(&part[i]);
            ck->planned_bytes += bytes;
            it->expanded_bytes += bytes;
        } else {
            H3_TRY(expand_part(ck, it, &part[i]));
            it->expanded[i] = h3_keep_alloc(&ck->keep, sizeof part[i]);
            if (!it->expanded[i]) return h3_fail(H3_E_NOMEM, "%s: no memory", ck->path);
            *it->expanded[i] = part[i];
            it->expanded_bytes += part[i].bytes;
        }
        it->expanded_from += stored;
    }
    return H3_OK;
}

void h3_ckpt_expansion(h3_checkpoint *ck, size_t *stored, size_t *expanded)
{
    *stored = *expanded = 0;
    for (size_t i = 0; i < ck->n_items; i++) {
        h3_item *it = &ck->items[i];
        h3_weight_part part[H3_MAX_PARTS];
        int n;
        if (!it->is_used || it->made || is_read_once(it->name)) continue;
        if (h3_item_parts(ck, it, part, &n) != H3_OK) continue; // bound before: it cannot fail
        for (int k = 0; k < n; k++) {
            if (!is_quantized(&part[k])) continue;
            *stored += part[k].bytes;
            *expanded += (size_t)(part[k].rows * part[k].cols) * width_of(&part[k]);
        }
    }
}

/**
 * AdaLN modulation of a whole schedule, before its first step.
 *
 * A block scales, shifts and gates every row by six vectors that depend only on the row's timestep
 * and modality. All timesteps of a request are known in advance and few (at most four a step), so
 * the 50 x [18 C, t_dim] matrices run once over the U distinct ones and are then free to leave the
 * device:
 *
 *   temb [U, t_dim] = proj_out(silu(proj_in([cos | sin](t f_i))))         f32 throughout
 *   mod  [U, 3 modalities, 6, C] = adaln(silu(temb))                      act
 *
 * SiLU of temb is taken in f32 and rounded to the stream's type after it. The other SiLU, inside
 * the time MLP, is a different one. Curve files have tabulated silu(temb) in a rank-8 basis: there
 * a linear interpolation in f32 takes the place of embedder and SiLU.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dit.h"

/*
 * [cos | sin] of t * 10000^(-i / half), in f32 as diffusers' get_timestep_embedding computes it
 * (with flip_sin_to_cos, no downscale shift). t is not scaled: 1 is clean. The last of an odd
 * number of columns is zero.
 */
static void sinusoid(float *row, float t, int64_t n)
{
    const int64_t half = n / 2;

    for (int64_t i = 0; i < half; i++) {
        const float exponent = -9.210340371976184f * (float)i / (float)half; // -ln 10000
        const float angle = t * expf(exponent);
        row[i] = cosf(angle);
        row[half + i] = sinf(angle);
    }
    if (n % 2) row[n - 1] = 0;
}

/* Linear interpolation over an even grid on [0, 1]; t = 1 is the end of the last interval. */
static void curve_at(float *row, float t, const float *curve, int64_t n_rows, int64_t n_cols)
{
    const float p = fminf(fmaxf(t, 0.0f), 1.0f) * (float)(n_rows - 1);
    const int64_t i = (int64_t)p < n_rows - 2 ? (int64_t)p : n_rows - 2;
    const float *a = curve + i * n_cols, *b = a + n_cols;

    for (int64_t c = 0; c < n_cols; c++)
        row[c] = a[c] + (b[c] - a[c]) * (p - (float)i);
}

/* The host's part, [U, t_freq] or [U, t_dim], on the device as f32. */
static h3_status upload_time_rows(h3_dev *d, const h3_dit *m, h3_tensor dst, const float *timesteps)
{
    const int64_t U = dst.ne[0], n = dst.ne[1];
    float *rows;
    h3_status st;

    if (d->is_plan) return H3_OK;
    rows = malloc((size_t)(U * n) * sizeof *rows);
    if (!rows) return h3_fail(H3_E_NOMEM, "no memory for timesteps");
    for (int64_t u = 0; u < U; u++) {
        if (m->curve)
            curve_at(rows + u * n, timesteps[u], m->curve, m->n_curve, n);
        else
            sinusoid(rows + u * n, timesteps[u], n);
    }
    st = h3_dev_upload(d, dst, rows);
    if (st == H3_OK) st = h3_dev_sync(d);
    free(rows);
    return st;
}

/* Input of every adaln matrix: y [U, t_dim], act (full form) or f32 (curve). */
static h3_status embed_time(h3_dev *d, const h3_dit *m, h3_tensor y, const float *timesteps)
{
    const int64_t U = y.ne[0];

    if (m->curve) return upload_time_rows(d, m, y, timesteps);
    h3_tensor wave = h3_scratch_2d(d, H3_F32, U, m->dims.t_freq);
    h3_tensor hidden = h3_scratch_2d(d, H3_F32, U, m->dims.t_hidden);
    h3_tensor temb = h3_scratch_2d(d, H3_F32, U, m->dims.t_dim);
    H3_TRY(h3_scratch_check(d, "time embedder"));
    H3_TRY(upload_time_rows(d, m, wave, timesteps));
    h3_tap(d, wave, "time_proj");
    H3_TRY(d->ops->gemm(d, hidden, wave, &m->edge.time_in, H3_ACT_SILU));
    H3_TRY(d->ops->gemm(d, temb, hidden, &m->edge.time_out, H3_ACT_NONE));
    h3_tap(d, temb, "time_embedder");
    return d->ops->act(d, y, temb, H3_ACT_SILU);
}

static h3_status modulate_edge(h3_dev *d, const h3_dit *m, h3_dit_state *s, h3_tensor temb,
                               const float *timesteps)
{
    const int64_t U = s->n_timesteps, C = m->dims.hidden;

    H3_TRY(embed_time(d, m, temb, timesteps));
    return d->ops->gemm(d, h3_view_2d(s->final_mod, U, 2 * C), temb, &m->edge.final_adaln,
                        H3_ACT_NONE);
}

/* The product's columns are (modality, parameter, channel): as [3 U, 6, C] its row 3 u + modality
 * holds shift, scale, gate of attention, then shift, scale, gate of the MLP. */
static h3_status modulate_block(h3_dev *d, const h3_dit *m, h3_dit_state *s, h3_tensor temb, int i)
{
    const int64_t U = s->n_timesteps, C = m->dims.hidden;
    h3_tensor mod = h3_at(s->mod, i);

    H3_TRY(h3_dev_check(d));
    H3_TRY(d->ops->gemm(d, h3_view_2d(mod, U, 18 * C), temb, &m->adaln[i].proj, H3_ACT_NONE));
    h3_tap(d, mod, "blocks.%d.adaln", i);
    return H3_OK;
}

/* Over ranks each reads the matrices of some blocks only: 26 GB of the release, once altogether. */
static int owner_of(const h3_comm *c, int block)
{
    return block % h3_comm_size(c);
}

/* Every block of mod [L, 3 U, 6, C] from its owner to the others. */
static h3_status share_blocks(h3_dev *d, h3_tensor mod)
{
    h3_comm *c = d->comm;
    const int L = (int)mod.ne[0], P = h3_comm_size(c), me = h3_comm_rank(c);
    const size_t bytes = (size_t)h3_numel(h3_at(mod, 0)) * h3_dtype_bytes((h3_dtype)mod.dtype);
    h3_message *list;
    int n_send = 0, n_recv = 0;
    h3_status st;

    if (P == 1) return H3_OK;
    list = malloc((size_t)L * (size_t)P * 2 * sizeof *list);
    if (!list) return h3_fail(H3_E_NOMEM, "no memory to share %d blocks of modulation", L);
    h3_message *send = list, *recv = list + L * P;
    for (int i = 0; i < L; i++) {
        void *at = h3_at(mod, i).data;
        if (owner_of(c, i) != me) recv[n_recv++] = (h3_message){owner_of(c, i), at, bytes};
        for (int r = 0; owner_of(c, i) == me && r < P; r++)
            if (r != me) send[n_send++] = (h3_message){r, at, bytes};
    }
    st = h3_comm_exchange(c, d, send, n_send, recv, n_recv);
    free(list);
    return st;
}

static h3_status modulate_all(h3_dev *d, const h3_dit *m, h3_dit_state *s, h3_store *store,
                              const float *timesteps)
{
    h3_tensor temb =
        h3_scratch_2d(d, m->curve ? H3_F32 : (h3_dtype)s->act, s->n_timesteps, m->dims.t_dim);
    h3_status st;

    H3_TRY(h3_scratch_check(d, "modulation"));
    for (int group = 0; group <= (int)m->dims.n_layers; group++) {
        if (group && owner_of(d->comm, group - 1) != h3_comm_rank(d->comm)) continue;
        if (store) H3_TRY(h3_store_acquire(store, group));
        st = group ? modulate_block(d, m, s, temb, group - 1)
                   : modulate_edge(d, m, s, temb, timesteps);
        if (store) h3_store_release(store, group);
        if (st != H3_OK) return st;
    }
    return share_blocks(d, s->mod);
}

h3_status h3_dit_modulate(h3_dev *d, const h3_dit *m, h3_dit_state *s, const float *timesteps)
{
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_store *store = d->is_plan ? NULL : m->mod_store;
    h3_status st;

    st = modulate_all(d, m, s, store, timesteps);
    if (st == H3_OK) st = h3_dev_sync(d);
    h3_arena_release(&d->scratch, mark);
    if (store) h3_store_drop(store); // sampling does not need them, and they are large
    return st;
}

/* ---- kept from request to request ---- */

/* Timesteps as bits: a schedule that differs at all is another one. */
bool h3_dit_recall_mod(const h3_dit *m, h3_dit_state *s, const float *timesteps)
{
    const h3_dit_kept_mod *k = &m->kept;
    const size_t bytes = (size_t)s->n_timesteps * sizeof *timesteps;

    if (!m->keeps || m->dev->tap || !k->timesteps) return false;
    if (k->act != s->act || k->n_timesteps != s->n_timesteps) return false;
    if (memcmp(k->timesteps, timesteps, bytes) != 0) return false;
    s->mod = k->mod;
    s->final_mod = k->final_mod;
    s->is_mod_kept = true;
    return true;
}

void h3_dit_forget_mod(h3_dit *m)
{
    h3_dit_kept_mod *k = &m->kept;

    if (!k->timesteps) return;
    h3_dev_free(m->dev, &k->mod);
    h3_dev_free(m->dev, &k->final_mod);
    free(k->timesteps);
    memset(k, 0, sizeof *k);
}

void h3_dit_keep_mod(const h3_dit *m, h3_dit_state *s, const float *timesteps)
{
    h3_dit *own = (h3_dit *)(uintptr_t)m; // what is remembered is not part of the model's value
    const size_t bytes = (size_t)s->n_timesteps * sizeof *timesteps;
    float *copy;

    if (!m->keeps || s->is_mod_kept || m->dev->tap || !(copy = malloc(bytes))) return;
    h3_dit_forget_mod(own);
    memcpy(copy, timesteps, bytes);
    own->kept = (h3_dit_kept_mod){s->act, s->n_timesteps, copy, s->mod, s->final_mod};
    s->is_mod_kept = true;
}

/**
 * Weights as products need them. A part whose bytes are already numbers of the wanted type is used
 * where the store put it. Everything else is decoded on the device:
 *
 *   for one product   into b->operand, row by row or all at once: quantised weights stay small, and
 *                     f32 products widen 16-bit weights exactly
 *   once, and kept    f32 weights under 16-bit activations, and weights with adapters: the copy has
 *                     the size that plain 16-bit weights have
 *   once, instead     the same, and e4m3, where a store keeps the weight (h3_dev.form): what was
 *                     stored goes, and is fetched again for whoever should ask for it
 *
 * What belongs to a weight here hangs on h3_weight.packed and goes with it.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "decode.h"
#include "size.h"

typedef struct packed_part {
    bool has_companions;
    h3_part part;    ///< pointers on the device
    const void *own; ///< bytes as stored that no store brought, or brought back
    void *copy[3];   ///< decoded and kept, by dtype (F32 never is)
    void *fp8;
    float *fp8_scale;
} packed_part;

typedef struct packed {
    packed_part part[H3_MAX_PARTS];
    h3_dev_lora *lora; ///< on the device, [n_lora]
    void *bias[3];     ///< rounded copies by dtype
    bool is_bias_known[3];
    void *line; ///< packed for h3_k_line
    float *line_scale;
    void **owned; ///< everything above that was allocated
    int n_owned, cap_owned;
} packed;

static h3_status take(h3_dev *d, packed *k, void **out, size_t bytes)
{
    if (k->n_owned == k->cap_owned) {
        const int cap = k->cap_owned ? 2 * k->cap_owned : 8;
        void **grown = realloc(k->owned, (size_t)cap * sizeof *grown);
        if (!grown) return h3_fail(H3_E_NOMEM, "no memory for a weight");
        k->owned = grown;
        k->cap_owned = cap;
    }
    H3_TRY(h3_cuda_alloc(d, out, bytes));
    k->owned[k->n_owned++] = *out;
    return H3_OK;
}

static h3_status take_copy(h3_dev *d, packed *k, const void *src, size_t bytes, const void **out)
{
    void *p = NULL;

    *out = NULL;
    if (!src || !bytes) return H3_OK;
    H3_TRY(take(d, k, &p, bytes));
    *out = p;
    return h3_cuda_upload(d, p, src, bytes);
}

void h3_cuda_weight_free(h3_dev *d, h3_weight *w)
{
    packed *k = w->packed;

    if (!k) return;
    for (int i = 0; i < k->n_owned; i++)
        h3_cuda_dealloc(d, k->owned[i]);
    free(k->owned);
    free(k);
    w->packed = NULL;
}

/* What a weight keeps on the device is no part of its value. */
static h3_status packed_of(const h3_weight *w, packed **out)
{
    h3_weight *own = (h3_weight *)(uintptr_t)w;

    if (!own->packed) own->packed = calloc(1, sizeof(packed));
    *out = own->packed;
    return *out ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for a weight");
}

/* An adapter's factor as dense f32 on the device. */
static h3_status upload_factor(h3_dev *d, packed *k, const h3_weight_part *p, const float **out)
{
    const size_t bytes = (size_t)(p->rows * p->cols) * sizeof(float);
    float *host = malloc(bytes ? bytes : 1);
    const void *on_device = NULL;
    h3_status st;

    if (!host) return h3_fail(H3_E_NOMEM, "no memory for an adapter");
    h3_weight_decode_rows(p, 0, p->rows, host);
    st = take_copy(d, k, host, bytes, &on_device);
    *out = on_device;
    free(host);
    return st;
}

static h3_status upload_adapters(h3_dev *d, packed *k, const h3_weight *w)
{
    h3_dev_lora *host;
    const void *on_device = NULL;
    h3_status st = H3_OK;

    if (k->lora || !w->n_lora) return H3_OK;
    host = calloc((size_t)w->n_lora, sizeof *host);
    if (!host) return h3_fail(H3_E_NOMEM, "no memory for %d adapters", w->n_lora);
    for (int i = 0; i < w->n_lora && st == H3_OK; i++) {
        const h3_lora *l = &w->lora[i];
        host[i] = (h3_dev_lora){.row0 = l->row0,
                                .b_rows = l->b.rows,
                                .weight_rows = l->weight_rows,
                                .rank = l->a.rows,
                                .head = l->head,
                                .map = l->map,
                                .slot = l->slot,
                                .scale = l->scale};
        st = upload_factor(d, k, &l->a, &host[i].a);
        if (st == H3_OK) st = upload_factor(d, k, &l->b, &host[i].b);
    }
    if (st == H3_OK) st = take_copy(d, k, host, (size_t)w->n_lora * sizeof *host, &on_device);
    k->lora = (h3_dev_lora *)(uintptr_t)on_device;
    free(host);
    return st;
}

/* Bytes of a part's own scales; rows of the file's tensor, not only of this slice. */
static size_t scale_bytes(const h3_weight_part *p)
{
    switch (p->encoding) {
    case H3_ENC_FP8_SCALED:
    case H3_ENC_INT8:
        return p->n_scale > 1 ? (size_t)p->n_scale * sizeof(float) : 0;
    case H3_ENC_MXFP8:
    case H3_ENC_NVFP4:
    case H3_ENC_W4A8:
        return (size_t)p->n_scale;
    default:
        return 0;
    }
}

static h3_status upload_companions(h3_dev *d, packed *k, const h3_weight_part *p, h3_part *out)
{
    const bool is_w4a8 = p->encoding == H3_ENC_W4A8;
    const size_t rows = (size_t)p->full_rows,
                 corr = is_w4a8 && p->block ? (size_t)(p->cols / p->block) * rows : 0;
    const void *v;

    H3_TRY(take_copy(d, k, p->scale, scale_bytes(p), &out->scale));
    if (is_w4a8) {
        H3_TRY(take_copy(d, k, p->scale2, rows * sizeof(float), &out->scale2));
        H3_TRY(take_copy(d, k, p->aux, 16 * sizeof(float), &out->aux));
        H3_TRY(take_copy(d, k, p->corr, corr * sizeof(float), &v));
        out->corr = v;
    }
    H3_TRY(take_copy(d, k, p->in_scale, (size_t)p->cols * sizeof(float), &v));
    out->in_scale = v;
    return H3_OK;
}

static bool is_on_device(const h3_weight_part *p)
{
    return p->dev && p->dev != p->data;
}

h3_status h3_cuda_part(h3_dev *d, const h3_weight *w, int i, h3_part *out)
{
    const h3_weight_part *p = &w->part[i];
    packed *k;

    H3_TRY(packed_of(w, &k));
    packed_part *pp = &k->part[i];
    if (!pp->has_companions) {
        h3_part q = {.rows = p->rows,
                     .cols = p->cols,
                     .row_bytes = (int64_t)p->row_bytes,
                     .row0 = p->row0,
                     .full_rows = p->full_rows,
                     .n_scale = p->n_scale,
                     .global = p->global,
                     .group = p->group,
                     .block = p->block,
                     .encoding = p->encoding,
                     .ggml_type = p->ggml_type,
                     .nibble_high = p->nibble_high,
                     .swizzled = p->swizzled};
        for (int j = 0; j < i; j++)
            q.first += w->part[j].rows;
        H3_TRY(upload_companions(d, k, p, &q));
        H3_TRY(upload_adapters(d, k, w));
        q.lora = k->lora;
        q.n_lora = w->n_lora;
        pp->part = q;
        pp->has_companions = true;
    }
    *out = pp->part;
    if (!is_on_device(p) && !pp->own) H3_TRY(take_copy(d, k, p->data, p->bytes, &pp->own));
    out->data = is_on_device(p) ? p->dev : pp->own; // a store that streams moves it
    return H3_OK;
}

/* The dtype that a part's bytes simply are, or H3_DTYPE_COUNT. */
static h3_dtype plain_dtype(const h3_weight_part *p)
{
    static const uint8_t ggml[] = {[0] = H3_F32, [1] = H3_F16, [30] = H3_BF16};
    static const uint8_t plain[] = {
        [H3_ENC_F32] = H3_F32, [H3_ENC_BF16] = H3_BF16, [H3_ENC_F16] = H3_F16};

    if (p->in_scale || p->group) return H3_DTYPE_COUNT;
    if (p->encoding <= H3_ENC_F16) return (h3_dtype)plain[p->encoding];
    if (p->encoding == H3_ENC_GGML && p->row_bytes &&
        (p->ggml_type == 0 || p->ggml_type == 1 || p->ggml_type == 30))
        return (h3_dtype)ggml[p->ggml_type];
    return H3_DTYPE_COUNT;
}

bool h3_cuda_is_plain(const h3_weight *w, int i, h3_dtype t)
{
    return w->n_lora == 0 && plain_dtype(&w->part[i]) == t;
}

static h3_rows dense_view(void *p, h3_dtype t, int64_t rows, int64_t cols)
{
    return (h3_rows){
        .p = p, .rows = rows, .cols = cols, .ne = {rows}, .st = {cols}, .n = 1, .dtype = t};
}

/* A decoded copy is kept when it is no larger than plain weights would be and memory is plentiful:
 * twice its size must remain for activations. */
static bool is_worth_keeping(const h3_weight *w, int i, h3_dtype want)
{
    const size_t bytes = (size_t)(w->part[i].rows * w->part[i].cols) * 2;
    size_t free_bytes = 0, total = 0;

    if (want == H3_F32 || w->is_passing || w->form != H3_F32) return false;
    if (w->n_lora == 0 && plain_dtype(&w->part[i]) == H3_DTYPE_COUNT) return false;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return false;
    return free_bytes > 3 * bytes && free_bytes > total / 8;
}

/* All of part `i`, decoded, with the weight. */
static h3_status keep_copy(h3_dev *d, const h3_weight *w, packed *k, int i, h3_dtype want)
{
    const int64_t N = w->part[i].rows, K = w->part[i].cols;
    void *copy = NULL;
    h3_part p;

    H3_TRY(h3_cuda_part(d, w, i, &p));
    H3_TRY(take(d, k, &copy, (size_t)(N * K) * h3_dtype_bytes(want)));
    H3_LAUNCH(d, h3_k_decode(d->backend->stream, dense_view(copy, want, N, K), &p, 0, NULL));
    k->part[i].copy[want] = copy; // not before it holds what it stands for
    d->backend->counts[H3_CUDA_N_DECODED]++;
    return H3_OK;
}

h3_status h3_cuda_matrix(h3_dev *d, const h3_weight *w, int i, h3_dtype want, int64_t row,
                         int64_t n, const void **out)
{
    h3_backend *b = d->backend;
    const size_t each = h3_dtype_bytes(want);
    const int64_t K = w->part[i].cols;
    packed *k;
    h3_part p;

    H3_TRY(packed_of(w, &k));
    packed_part *pp = &k->part[i];
    if (!pp->copy[want] && !h3_cuda_is_plain(w, i, want) && is_worth_keeping(w, i, want))
        H3_TRY(keep_copy(d, w, k, i, want));
    if (pp->copy[want]) {
        *out = (const char *)pp->copy[want] + (size_t)(row * K) * each;
        return H3_OK;
    }
    H3_TRY(h3_cuda_part(d, w, i, &p));
    if (h3_cuda_is_plain(w, i, want)) {
        *out = (const char *)p.data + row * p.row_bytes;
        return H3_OK;
    }
    H3_TRY(h3_cuda_grow(d, &b->operand, (size_t)(n * K) * each));
    H3_LAUNCH(d, h3_k_decode(b->stream, dense_view(b->operand.p, want, n, K), &p, row, NULL));
    b->counts[H3_CUDA_N_DECODED]++;
    *out = b->operand.p;
    return H3_OK;
}

h3_status h3_cuda_whole(h3_dev *d, const h3_weight *w, h3_dtype want, const void **out)
{
    h3_backend *b = d->backend;
    int64_t row = 0;

    if (w->n_parts == 1) return h3_cuda_matrix(d, w, 0, want, 0, w->rows, out);
    H3_TRY(h3_cuda_grow(d, &b->operand, (size_t)(w->rows * w->cols) * h3_dtype_bytes(want)));
    for (int i = 0; i < w->n_parts; i++) {
        h3_part p;
        char *to = (char *)b->operand.p + (size_t)(row * w->cols) * h3_dtype_bytes(want);
        H3_TRY(h3_cuda_part(d, w, i, &p));
        H3_LAUNCH(d, h3_k_decode(b->stream, dense_view(to, want, p.rows, w->cols), &p, 0, NULL));
        row += p.rows;
    }
    b->counts[H3_CUDA_N_DECODED]++;
    *out = b->operand.p;
    return H3_OK;
}

/* Rows of part `i` in bands: decoded, then in e4m3 with a scale each. */
static h3_status quantise_part(h3_dev *d, const h3_weight *w, int i, void *fp8, float *scales)
{
    enum { BAND = 4096 };
    const int64_t K = w->part[i].cols, N = w->part[i].rows;

    for (int64_t r = 0; r < N; r += BAND) {
        const int64_t n = N - r < BAND ? N - r : BAND;
        const void *rows = NULL;
        H3_TRY(h3_cuda_matrix(d, w, i, H3_BF16, r, n, &rows));
        H3_LAUNCH(d, h3_k_quantise(d->backend->stream, (char *)fp8 + r * K, scales + r,
                                   dense_view((void *)(uintptr_t)rows, H3_BF16, n, K)));
    }
    return H3_OK;
}

h3_status h3_cuda_matrix_fp8(h3_dev *d, const h3_weight *w, int i, const void **out,
                             const float **scales)
{
    h3_backend *b = d->backend;
    const int64_t K = w->part[i].cols, N = w->part[i].rows;
    packed *k;

    if (w->is_passing) {
        H3_TRY(h3_cuda_grow(d, &b->passing[0], (size_t)(N * K)));
        H3_TRY(h3_cuda_grow(d, &b->passing[1], (size_t)N * sizeof(float)));
        *out = b->passing[0].p;
        *scales = b->passing[1].p;
        return quantise_part(d, w, i, b->passing[0].p, b->passing[1].p);
    }
    H3_TRY(packed_of(w, &k));
    packed_part *pp = &k->part[i];
    if (!pp->fp8) {
        void *fp8 = NULL, *scale = NULL;
        H3_TRY(take(d, k, &fp8, (size_t)(N * K)));
        H3_TRY(take(d, k, &scale, (size_t)N * sizeof(float)));
        H3_TRY(quantise_part(d, w, i, fp8, scale));
        pp->fp8 = fp8; // not before it holds what it stands for
        pp->fp8_scale = scale;
    }
    *out = pp->fp8;
    *scales = pp->fp8_scale;
    return H3_OK;
}

h3_dtype h3_cuda_form(const h3_dev *d, const h3_weight *w, h3_dtype act, int64_t rows,
                      bool is_tolerant)
{
    bool is_stored = w->n_lora == 0;

    if (d->backend->math == H3_CUDA_F32 || (act != H3_BF16 && act != H3_F16)) return H3_F32;
    if (act == H3_BF16 && h3_cuda_takes_e4m3(d, rows, w, is_tolerant)) return H3_F8_E4M3;
    for (int i = 0; i < w->n_parts; i++) {
        const h3_dtype t = plain_dtype(&w->part[i]);
        if (t == H3_DTYPE_COUNT) return H3_F32; // decoded for each product: smaller
        is_stored = is_stored && t == act;
    }
    return is_stored ? H3_F32 : act;
}

h3_status h3_cuda_reform(h3_dev *d, const h3_weight *w)
{
    packed *k;

    H3_TRY(packed_of(w, &k));
    for (int i = 0; i < w->n_parts; i++) {
        const void *p;
        const float *scales;
        if (w->form == H3_F8_E4M3)
            H3_TRY(h3_cuda_matrix_fp8(d, w, i, &p, &scales));
        else if (!k->part[i].copy[w->form])
            H3_TRY(keep_copy(d, w, k, i, (h3_dtype)w->form));
    }
    return H3_OK;
}

h3_status h3_cuda_line_weight(h3_dev *d, const h3_weight *w, int64_t ci, int taps, const void **out,
                              const float **scales)
{
    h3_backend *b = d->backend;
    const void *m;
    void *scale = NULL;
    packed *k;

    H3_TRY(packed_of(w, &k));
    if (!k->line) {
        H3_TRY(h3_cuda_whole(d, w, H3_F32, &m));
        H3_TRY(take(d, k, &scale, (size_t)w->rows * sizeof(float)));
        H3_TRY(take(d, k, &k->line, h3_k_line_bytes(w->rows, ci, taps)));
        k->line_scale = scale;
        H3_LAUNCH(d, h3_k_line_pack(b->stream, k->line, scale, m, w->rows, ci, taps));
    }
    *out = k->line;
    *scales = k->line_scale;
    return H3_OK;
}

h3_status h3_cuda_bias(h3_dev *d, const h3_weight *w, h3_dtype t, bool may_round, const void **out)
{
    h3_backend *b = d->backend;
    packed *k;

    *out = NULL;
    if (h3_is_null(w->bias)) return H3_OK;
    if (t == H3_F32) {
        *out = w->bias.data;
        return H3_OK;
    }
    H3_TRY(packed_of(w, &k));
    if (!k->is_bias_known[t]) {
        void *copy = NULL;
        k->is_bias_known[t] = true;
        *b->flag = 0;
        H3_LAUNCH(d, h3_k_survives(b->stream, b->flag, w->bias.data, w->rows, (uint8_t)t));
        H3_TRY(h3_cuda_wait(d));
        if (may_round || !*(volatile int *)b->flag) {
            H3_TRY(take(d, k, &copy, (size_t)w->rows * 2));
            H3_LAUNCH(d, h3_k_convert(b->stream, copy, (uint8_t)t, w->bias.data, H3_F32, w->rows));
        }
        k->bias[t] = copy;
    }
    *out = k->bias[t];
    return H3_OK;
}

/**
 * See qkv_check.h. For each order the rows fall into three groups; the share is the between-group
 * sum of squares over the total (eta squared) of the log magnitudes. Under the wrong order every
 * group mixes q, k and v rows evenly and the share is near zero.
 */
#include "qkv_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"
#include "decode.h"

enum { MAX_HEADS = 9 }; // a multiple of 3 sampled heads' worth of rows per block

/* eta^2 of v[n] in groups g(i); n >= 3. */
static double explained(const double *v, const uint8_t *group, size_t n)
{
    double sum[3] = {0}, all = 0, mean, total = 0, between = 0;
    size_t count[3] = {0};

    for (size_t i = 0; i < n; i++) {
        sum[group[i]] += v[i];
        count[group[i]]++;
        all += v[i];
    }
    mean = all / (double)n;
    for (size_t i = 0; i < n; i++)
        total += (v[i] - mean) * (v[i] - mean);
    for (int g = 0; g < 3; g++)
        if (count[g]) {
            const double m = sum[g] / (double)count[g] - mean;
            between += (double)count[g] * m * m;
        }
    return total > 0 ? between / total : 0;
}

static h3_status check_matrix(h3_checkpoint *ck, h3_item *it, int64_t D, h3_qkv_check *out)
{
    h3_weight_part part[H3_MAX_PARTS];
    const int64_t rows = it->ne[0], cols = it->ne[1], chunks = rows / D; // chunks: 3 x heads
    const int64_t step = chunks > 3 * MAX_HEADS ? chunks / (3 * MAX_HEADS) : 1;
    const size_t most = (size_t)(chunks / step + 1) * (size_t)D;
    double *v = malloc(most * sizeof *v);
    uint8_t *mixed = malloc(most), *thirds = malloc(most);
    float *row = malloc((size_t)cols * sizeof *row);
    size_t n = 0;
    int n_parts;
    h3_status st = h3_item_parts(ck, it, part, &n_parts);

    if (st == H3_OK && (!v || !mixed || !thirds || !row))
        st = h3_fail(H3_E_NOMEM, "%s: no memory to check row orders", ck->path);
    /* A step that is a multiple of 3 would see one group only. */
    for (int64_t c = 0; c < chunks && st == H3_OK; c += step % 3 ? step : step + 1)
        for (int64_t r = c * D; r < (c + 1) * D && n < most; r++) {
            double sum = 0;
            h3_weight_decode_rows(&part[0], r, 1, row);
            for (int64_t k = 0; k < cols; k++)
                sum += (double)row[k] * (double)row[k];
            v[n] = log(sum + 1e-30);
            mixed[n] = (uint8_t)(c % 3);
            thirds[n++] = (uint8_t)(r / (rows / 3));
        }
    if (st == H3_OK && n >= 3) {
        out->interleaved += explained(v, mixed, n);
        out->stacked += explained(v, thirds, n);
    }
    free(v);
    free(mixed);
    free(thirds);
    free(row);
    return st;
}

h3_status h3_ckpt_check_qkv(h3_checkpoint *ck, h3_qkv_check *out)
{
    const int64_t layers = h3_ckpt_count(ck, "blocks.%d.attn.qkv_proj.weight");
    int n = 0;

    memset(out, 0, sizeof *out);
    if (ck->naming.role != H3_ROLE_DIT) return H3_OK;
    for (int i = 0; i < 3 && i < layers; i++) {
        char name[96];
        h3_item *it;
        const int64_t at = i * (layers - 1) / 2;
        snprintf(name, sizeof name, "blocks.%lld.attn.qkv_proj.weight", (long long)at);
        it = (h3_item *)(uintptr_t)h3_ckpt_item(ck, name);
        snprintf(name, sizeof name, "blocks.%lld.attn.q_norm.weight", (long long)at);
        const h3_item *norm = h3_ckpt_item(ck, name);
        if (!it || it->piece != H3_PIECE_WHOLE || it->rank != 2 || !norm || norm->rank != 1)
            return H3_OK;
        const int64_t D = norm->ne[0];
        if (D < 1 || it->ne[0] < 3 * D || it->ne[0] % (3 * D) || it->ne[1] < 1) return H3_OK;
        H3_TRY(check_matrix(ck, it, D, out));
        n++;
    }
    if (!n) return H3_OK;
    out->is_done = true;
    out->interleaved /= n;
    out->stacked /= n;
    const bool is_mixed = ck->qkv == H3_QKV_INTERLEAVED;
    const double used = is_mixed ? out->interleaved : out->stacked;
    const double other = is_mixed ? out->stacked : out->interleaved;
    out->is_doubtful = other > 0.15 && other > 4 * used;
    return H3_OK;
}

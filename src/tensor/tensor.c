/** Views; see tensor.h. Nothing here touches the numbers. */
#include "tensor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[H3_DTYPE_COUNT] = {
    [H3_F32] = {"F32", 4},         [H3_BF16] = {"BF16", 2},       [H3_F16] = {"F16", 2},
    [H3_I32] = {"I32", 4},         [H3_U8] = {"U8", 1},           [H3_I8] = {"I8", 1},
    [H3_F64] = {"F64", 8},         [H3_I64] = {"I64", 8},         [H3_I16] = {"I16", 2},
    [H3_BOOL] = {"BOOL", 1},       [H3_F8_E4M3] = {"F8_E4M3", 1}, [H3_F8_E5M2] = {"F8_E5M2", 1},
    [H3_F8_E8M0] = {"F8_E8M0", 1},
};

size_t h3_dtype_bytes(h3_dtype t)
{
    assert(t < H3_DTYPE_COUNT);
    return dtypes[t].bytes;
}

const char *h3_dtype_name(h3_dtype t)
{
    return t < H3_DTYPE_COUNT ? dtypes[t].name : "?";
}

bool h3_dtype_parse(const char *name, h3_dtype *out)
{
    for (int i = 0; i < H3_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (h3_dtype)i;
            return true;
        }
    return false;
}

static void set_dense(h3_tensor *t, int rank, const int64_t *ne)
{
    int64_t step = 1;

    assert(rank >= 1 && rank <= H3_MAX_RANK);
    t->rank = (uint8_t)rank;
    for (int i = H3_MAX_RANK - 1; i >= 0; i--) {
        t->ne[i] = i < rank ? ne[i] : 1;
        t->st[i] = i < rank ? step : 1;
        if (i < rank) step *= ne[i];
    }
}

h3_tensor h3_host_tensor(void *data, h3_dtype dtype, int rank, const int64_t *ne)
{
    h3_tensor t = {.data = data, .dtype = (uint8_t)dtype, .mem = H3_HOST};
    set_dense(&t, rank, ne);
    return t;
}

h3_tensor h3_tensor_1d(void *data, h3_dtype t, int64_t n0)
{
    return h3_host_tensor(data, t, 1, &n0);
}

h3_tensor h3_tensor_2d(void *data, h3_dtype t, int64_t n0, int64_t n1)
{
    return h3_host_tensor(data, t, 2, (const int64_t[]){n0, n1});
}

h3_tensor h3_tensor_3d(void *data, h3_dtype t, int64_t n0, int64_t n1, int64_t n2)
{
    return h3_host_tensor(data, t, 3, (const int64_t[]){n0, n1, n2});
}

int64_t h3_numel(h3_tensor t)
{
    int64_t n = 1;
    for (int i = 0; i < t.rank; i++)
        n *= t.ne[i];
    return n;
}

bool h3_is_dense(h3_tensor t)
{
    int64_t step = 1;
    for (int i = t.rank - 1; i >= 0; i--) {
        if (t.ne[i] != 1 && t.st[i] != step) return false;
        step *= t.ne[i];
    }
    return true;
}

int64_t h3_n_rows(h3_tensor t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t.rank; i++)
        n *= t.ne[i];
    return n;
}

h3_tensor h3_view(h3_tensor t, int rank, const int64_t *ne)
{
    h3_tensor v = t;

    assert(h3_is_dense(t));
    set_dense(&v, rank, ne);
    assert(h3_numel(v) == h3_numel(t));
    return v;
}

h3_tensor h3_view_2d(h3_tensor t, int64_t n0, int64_t n1)
{
    return h3_view(t, 2, (const int64_t[]){n0, n1});
}

h3_tensor h3_view_3d(h3_tensor t, int64_t n0, int64_t n1, int64_t n2)
{
    return h3_view(t, 3, (const int64_t[]){n0, n1, n2});
}

h3_tensor h3_slice(h3_tensor t, int axis, int64_t from, int64_t n)
{
    assert(axis >= 0 && axis < t.rank && from >= 0 && n >= 0 && from + n <= t.ne[axis]);
    t.data = (unsigned char *)t.data + (size_t)(from * t.st[axis]) * h3_dtype_bytes(t.dtype);
    t.ne[axis] = n;
    return t;
}

h3_tensor h3_at(h3_tensor t, int64_t i)
{
    assert(t.rank > 1);
    t = h3_slice(t, 0, i, 1);
    for (int a = 0; a + 1 < H3_MAX_RANK; a++) {
        t.ne[a] = t.ne[a + 1];
        t.st[a] = t.st[a + 1];
    }
    t.ne[H3_MAX_RANK - 1] = t.st[H3_MAX_RANK - 1] = 1;
    t.rank--;
    return t;
}

const char *h3_tensor_desc(h3_tensor t)
{
    static _Thread_local char ring[4][128];
    static _Thread_local unsigned turn;
    char *s = ring[turn++ % 4];
    int n = snprintf(s, 128, "[");

    for (int i = 0; i < t.rank; i++)
        n += snprintf(s + n, (size_t)(128 - n), "%s%lld", i ? ", " : "", (long long)t.ne[i]);
    snprintf(s + n, (size_t)(128 - n), "] %s", h3_dtype_name(t.dtype));
    return s;
}

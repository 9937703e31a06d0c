/** Saved runs; see latents.h. */
#include "latents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "manifest.h"
#include "st_write.h"

enum { MAX_LATENT = 1 << 16 }; // of a side or in time; 16 pixels or 17 / 5 frames each

const char *h3_latents_meta(const json_t *meta, const char *key)
{
    return json_string_value(json_object_get(meta, key));
}

/* Copies an f32 tensor of the given rank out of a manifest; ne receives its extents. */
static h3_status take(float **out, const h3_manifest *m, const char *path, const char *name,
                      int rank, int64_t *ne)
{
    const h3_entry *e = h3_manifest_find(m, name);

    if (!e) return h3_fail(H3_E_MISSING, "%s: no tensor %s: not saved latents of h3av", path, name);
    if (e->dtype != H3_F32 || e->rank != rank)
        return h3_fail(H3_E_FORMAT, "%s: tensor %s is %s of rank %d, expected F32 of rank %d", path,
                       name, h3_dtype_name((h3_dtype)e->dtype), e->rank, rank);
    for (int i = 0; i < rank; i++)
        ne[i] = e->ne[i];
    *out = malloc(e->bytes ? e->bytes : 1);
    if (!*out) return h3_fail(H3_E_NOMEM, "%s: no memory for %s", path, name);
    if (e->bytes) memcpy(*out, e->data, e->bytes);
    for (size_t i = 0; i < e->bytes / 4; i++)
        if (!isfinite((*out)[i]))
            return h3_fail(H3_E_NUMERIC, "%s: tensor %s holds NaN or infinity at %zu", path, name,
                           i);
    return H3_OK;
}

/* Every string of __metadata__ this program writes. */
static json_t *read_meta(const h3_manifest *m)
{
    const char *text = h3_manifest_meta(m, "h3av");
    json_t *meta = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;

    if (json_is_object(meta)) return meta;
    json_decref(meta);
    return json_object();
}

static json_t *pack_meta(const json_t *meta, const char *kind)
{
    json_t *copy = json_deep_copy(meta), *out;
    char *text;

    json_object_set_new(copy, "kind", json_string(kind));
    text = json_dumps(copy, JSON_COMPACT);
    json_decref(copy);
    out = json_pack("{s:s}", "h3av", text ? text : "{}");
    free(text);
    return out;
}

static h3_status check_kind(const json_t *meta, const char *kind, const char *path)
{
    const char *is = h3_latents_meta(meta, "kind");

    if (is && strcmp(is, kind) == 0) return H3_OK;
    return h3_fail(H3_E_FORMAT, "%s: is %s%s, expected %s of h3av", path,
                   is ? "a file of kind " : "", is ? is : "no file that h3av saved", kind);
}

h3_status h3_latents_write(const char *path, const h3_latents *l)
{
    const int64_t nv[4] = {24, l->t, l->h, l->w};
    const h3_st_tensor list[2] = {
        {"video", h3_host_tensor(l->video, H3_F32, 4, nv)},
        {"audio", h3_tensor_3d(l->audio, H3_F32, 2, 32, l->n_audio)},
    };
    json_t *meta = pack_meta(l->meta, "latents");
    const h3_status st = h3_st_write(path, list, 2, meta);

    json_decref(meta);
    return st;
}

h3_status h3_latents_read(h3_latents *out, const char *path)
{
    int64_t nv[4] = {0}, na[3] = {0};
    h3_manifest *m = NULL;
    h3_status st;

    memset(out, 0, sizeof *out);
    H3_TRY(h3_manifest_open(&m, path));
    out->meta = read_meta(m);
    if ((st = check_kind(out->meta, "latents", path)) != H3_OK) goto done;
    if ((st = take(&out->video, m, path, "video", 4, nv)) != H3_OK) goto done;
    if ((st = take(&out->audio, m, path, "audio", 3, na)) != H3_OK) goto done;
    if (nv[0] != 24 || na[0] != 2 || na[1] != 32) {
        st = h3_fail(H3_E_SHAPE,
                     "%s: video has %lld channels and audio %lld x %lld, expected 24 and 2 x 32",
                     path, (long long)nv[0], (long long)na[0], (long long)na[1]);
        goto done;
    }
    for (int i = 1; i < 4; i++) // an empty tensor can claim any extents
        if (nv[i] < 1 || nv[i] > MAX_LATENT || na[2] < 1) {
            st = h3_fail(H3_E_SHAPE,
                         "%s: video of %lld x %lld x %lld latents and %lld of sound: each must be "
                         "1 to %d",
                         path, (long long)nv[1], (long long)nv[2], (long long)nv[3],
                         (long long)na[2], MAX_LATENT);
            goto done;
        }
    out->t = nv[1];
    out->h = nv[2];
    out->w = nv[3];
    out->n_audio = na[2];

done:
    h3_manifest_close(&m);
    if (st != H3_OK) h3_latents_free(out);
    return st;
}

void h3_latents_free(h3_latents *l)
{
    free(l->video);
    free(l->audio);
    json_decref(l->meta);
    memset(l, 0, sizeof *l);
}

h3_status h3_checkpoint_write(const char *path, const h3_checkpoint_file *c)
{
    char step[24];
    const h3_st_tensor list[2] = {
        {"video_rows", h3_tensor_2d(c->video_rows, H3_F32, c->n_video, c->video_cols)},
        {"audio_rows", h3_tensor_2d(c->audio_rows, H3_F32, c->n_audio, c->audio_cols)},
    };
    json_t *copy = json_deep_copy(c->meta), *meta;
    h3_status st;

    snprintf(step, sizeof step, "%lld", (long long)c->step);
    json_object_set_new(copy, "step", json_string(step));
    meta = pack_meta(copy, "checkpoint");
    st = h3_st_write(path, list, 2, meta);
    json_decref(meta);
    json_decref(copy);
    return st;
}

h3_status h3_checkpoint_read(h3_checkpoint_file *out, const char *path)
{
    int64_t nv[2] = {0}, na[2] = {0};
    h3_manifest *m = NULL;
    const char *step;
    char *end = NULL;
    h3_status st;

    memset(out, 0, sizeof *out);
    H3_TRY(h3_manifest_open(&m, path));
    out->meta = read_meta(m);
    if ((st = check_kind(out->meta, "checkpoint", path)) != H3_OK) goto done;
    if ((st = take(&out->video_rows, m, path, "video_rows", 2, nv)) != H3_OK) goto done;
    if ((st = take(&out->audio_rows, m, path, "audio_rows", 2, na)) != H3_OK) goto done;
    step = h3_latents_meta(out->meta, "step");
    out->step = step ? strtoll(step, &end, 10) : 0;
    if (out->step < 1 || *end)
        st = h3_fail(H3_E_FORMAT, "%s: the checkpoint does not say its step", path);
    out->n_video = nv[0];
    out->video_cols = nv[1];
    out->n_audio = na[0];
    out->audio_cols = na[1];

done:
    h3_manifest_close(&m);
    if (st != H3_OK) h3_checkpoint_free(out);
    return st;
}

void h3_checkpoint_free(h3_checkpoint_file *c)
{
    free(c->video_rows);
    free(c->audio_rows);
    json_decref(c->meta);
    memset(c, 0, sizeof *c);
}

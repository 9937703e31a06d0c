/** From files to pixels and samples; see source.h. */
#include "source.h"

#include <stdlib.h>
#include <string.h>

#include "clip.h"
#include "file.h"
#include "image.h"
#include "probe.h"
#include "sound.h"

void h3_source_free(h3_source *s)
{
    free(s->name);
    free(s->rgb);
    free(s->pcm);
    memset(s, 0, sizeof *s);
}

static h3_media_src media_of(const h3_input *in)
{
    return in->data ? h3_media_bytes(in->path ? in->path : "(data)", in->data, in->size)
                    : h3_media_file(in->path);
}

static const char *name_of(const h3_input *in)
{
    return in->path ? in->path : "(data)";
}

static h3_status load_picture(h3_source *out, const h3_input *in)
{
    h3_image img;

    H3_TRY(h3_image_load(&img, media_of(in)));
    out->kind = H3_SOURCE_IMAGE;
    out->rgb = img.rgb; // the picture's memory becomes the source's
    out->n = 1;
    out->file = out->size = (h3_size){img.width, img.height};
    return H3_OK;
}

h3_status h3_source_picture(h3_source *out, const h3_input *in, const char *role)
{
    h3_media_info info;
    h3_status st;

    memset(out, 0, sizeof *out);
    if (!in->path && !in->data) return h3_fail(H3_E_ARG, "%s: no picture given", role);
    if ((st = h3_media_probe(&info, media_of(in))) != H3_OK) return h3_fail_in(st, "%s", role);
    if (info.kind != H3_MEDIA_IMAGE)
        return h3_fail(H3_E_ARG, "%s: %s is a %s, a keyframe must be a picture", role, name_of(in),
                       h3_media_kind_name(info.kind));
    out->name = h3_strdupf("%s", name_of(in));
    if ((st = load_picture(out, in)) != H3_OK) {
        h3_source_free(out);
        return h3_fail_in(st, "%s", role);
    }
    return H3_OK;
}

/* The sound of a file, cut at its own rate to the request's length. */
static h3_status load_sound(h3_source *out, const h3_input *in, const h3_source_rule *rule)
{
    h3_sound sound;

    H3_TRY(h3_sound_load(&sound, media_of(in), (double)rule->n_frames / 24.0, rule->stop));
    out->has_audio = true;
    out->pcm = sound.pcm;
    out->n_samples = sound.n;
    out->rate = sound.sample_rate;
    return H3_OK;
}

static h3_status load_clip(h3_source *out, const h3_input *in, h3_size file, bool is_folder,
                           const h3_source_rule *rule)
{
    h3_size canvas;
    h3_clip clip;

    H3_TRY(h3_canvas_resolve(&canvas, (double)file.width, (double)file.height, rule->canvas));
    if (is_folder)
        H3_TRY(h3_clip_load_folder(&clip, in->path, in->fps, rule->n_frames, (int)canvas.width,
                                   (int)canvas.height, rule->stop));
    else
        H3_TRY(h3_clip_load(&clip, media_of(in), rule->n_frames, (int)canvas.width,
                            (int)canvas.height, rule->stop));
    out->kind = H3_SOURCE_VIDEO;
    out->rgb = clip.rgb;
    out->n = clip.n;
    out->file = file;
    out->size = canvas;
    return H3_OK;
}

static h3_status load_folder(h3_source *out, const h3_input *in, int number,
                             const h3_source_rule *rule)
{
    h3_clip first;

    if (!(in->fps > 0))
        return h3_fail(H3_E_ARG,
                       "reference %d: %s is a folder of frames; give its rate with "
                       "--ref-fps (24 keeps every frame)",
                       number, in->path);
    if (in->sound == H3_SOUND_YES || in->sound == H3_SOUND_ONLY)
        return h3_fail(H3_E_ARG, "reference %d: %s is a folder of frames and has no sound", number,
                       in->path);
    H3_TRY(h3_clip_load_folder(&first, in->path, in->fps, 1, 0, 0, rule->stop));
    const h3_size file = {first.width, first.height};
    h3_clip_free(&first);
    return load_clip(out, in, file, true, rule);
}

static h3_status load_probed(h3_source *out, const h3_input *in, const h3_media_info *info,
                             int number, const h3_source_rule *rule)
{
    static const h3_media_kind asked[] = {[H3_INPUT_IMAGE] = H3_MEDIA_IMAGE,
                                          [H3_INPUT_VIDEO] = H3_MEDIA_VIDEO,
                                          [H3_INPUT_AUDIO] = H3_MEDIA_AUDIO};
    const bool is_only = in->sound == H3_SOUND_ONLY;

    if (in->kind != H3_INPUT_AUTO && asked[in->kind] != info->kind)
        return h3_fail(H3_E_ARG, "reference %d: %s is a %s, a %s was asked for", number,
                       name_of(in), h3_media_kind_name(info->kind),
                       h3_media_kind_name(asked[in->kind]));
    if (info->kind == H3_MEDIA_IMAGE) {
        if (in->sound == H3_SOUND_YES || is_only)
            return h3_fail(H3_E_ARG, "reference %d: %s is a picture and has no sound", number,
                           name_of(in));
        return load_picture(out, in);
    }
    if (info->kind == H3_MEDIA_AUDIO) {
        if (in->sound == H3_SOUND_NO)
            return h3_fail(H3_E_ARG, "reference %d: %s is sound alone, sound=no leaves nothing",
                           number, name_of(in));
        out->kind = H3_SOURCE_AUDIO;
        return load_sound(out, in, rule);
    }
    if (!info->has_audio && (in->sound == H3_SOUND_YES || is_only))
        return h3_fail(H3_E_ARG, "reference %d: %s has no sound track", number, name_of(in));
    if (is_only) {
        out->kind = H3_SOURCE_AUDIO;
        return load_sound(out, in, rule);
    }
    H3_TRY(load_clip(out, in, (h3_size){info->width, info->height}, false, rule));
    return info->has_audio && in->sound != H3_SOUND_NO ? load_sound(out, in, rule) : H3_OK;
}

h3_status h3_source_reference(h3_source *out, const h3_input *in, int number,
                              const h3_source_rule *rule)
{
    h3_media_info info;
    h3_status st;

    memset(out, 0, sizeof *out);
    if (!in->path && !in->data) return h3_fail(H3_E_ARG, "reference %d: no file given", number);
    if ((unsigned)in->kind > H3_INPUT_AUDIO || (unsigned)in->sound > H3_SOUND_ONLY)
        return h3_fail(H3_E_ARG, "reference %d: kind %d, sound %d are not known", number,
                       (int)in->kind, (int)in->sound);
    out->name = h3_strdupf("%s", name_of(in));
    if (!in->data && h3_path_is_dir(in->path)) {
        st = load_folder(out, in, number, rule);
    } else if ((st = h3_media_probe(&info, media_of(in))) != H3_OK) {
        st = h3_fail_in(st, "reference %d", number);
    } else {
        st = load_probed(out, in, &info, number, rule);
    }
    if (st != H3_OK) h3_source_free(out);
    return st;
}

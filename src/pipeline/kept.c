/** Parts that stay open; see kept.h. One place for each kind, so the last one of a kind is kept. */
#include "kept.h"

#include "audio_vae.h"
#include "dit.h"
#include "encoder.h"
#include "engine.h"
#include "video_vae.h"

static const h3_role roles[H3_PART_KINDS] = {
    [H3_PART_TEXT] = H3_ROLE_TEXT_ENCODER,  [H3_PART_PIXELS] = H3_ROLE_VIDEO_VAE,
    [H3_PART_SOUND_IN] = H3_ROLE_AUDIO_VAE, [H3_PART_DIT] = H3_ROLE_DIT,
    [H3_PART_DIT_REF] = H3_ROLE_DIT,        [H3_PART_SOUND] = H3_ROLE_AUDIO_VAE,
    [H3_PART_PICTURE] = H3_ROLE_VIDEO_VAE,
};

static const char *path_of(const h3_engine *e, h3_part_kind kind)
{
    const h3_model *m = &e->model;
    const char *const paths[H3_PART_KINDS] = {
        [H3_PART_TEXT] = m->text_encoder,  [H3_PART_PIXELS] = m->video_vae,
        [H3_PART_SOUND_IN] = m->audio_vae, [H3_PART_DIT] = m->dit,
        [H3_PART_DIT_REF] = m->dit_ref,    [H3_PART_SOUND] = m->audio_vae,
        [H3_PART_PICTURE] = m->video_vae,
    };
    return paths[kind];
}

static void close_part(h3_part *p)
{
    switch (p->net.any ? roles[p->kind] : H3_ROLE_OTHER) {
    case H3_ROLE_TEXT_ENCODER:
        h3_encoder_close(&p->net.encoder);
        break;
    case H3_ROLE_DIT:
        h3_dit_close(&p->net.dit);
        break;
    case H3_ROLE_VIDEO_VAE:
        h3_video_vae_close(&p->net.video);
        break;
    case H3_ROLE_AUDIO_VAE:
        h3_audio_vae_close(&p->net.audio);
        break;
    default:
        break;
    }
    h3_ckpt_close(&p->ck);
    p->net.any = NULL;
}

/* Everything but the files is settled when the engine is opened: paths, adapters, qkv order, dtype,
 * device. */
static bool is_reusable(const h3_part *p, const h3_dev *d, h3_part_how how)
{
    return p->ck && p->dev == d && p->how.has_vision == how.has_vision &&
           p->how.is_expanded == how.is_expanded && h3_ckpt_is_fresh(p->ck);
}

h3_status h3_part_open(h3_part **out, h3_engine *e, h3_dev *d, h3_part_kind kind, h3_part_how how)
{
    h3_part *p = &e->part[d->is_plan][kind];
    h3_ckpt_opts opts = e->ckpt;

    *out = p;
    if (is_reusable(p, d, how)) return H3_OK;
    close_part(p);
    *p = (h3_part){.kind = kind, .how = how, .dev = d};
    if (kind == H3_PART_TEXT) opts.extra = e->model.mmproj;
    if (how.is_expanded) opts.quant = H3_QUANT_EXPAND;
    const h3_status st = h3_ckpt_open(&p->ck, path_of(e, kind), roles[kind], &opts);
    if (st != H3_OK) *out = NULL;
    return st;
}

static h3_status bind(h3_part *p, uint8_t act)
{
    const h3_encoder_opts text = {.act = (h3_dtype)act, .has_vision = p->how.has_vision};

    switch (p->kind) {
    case H3_PART_TEXT:
        return h3_encoder_open(&p->net.encoder, p->ck, p->dev, &text);
    case H3_PART_PIXELS:
        return h3_video_vae_open(&p->net.video, p->dev, p->ck, H3_VIDEO_VAE_ENCODER);
    case H3_PART_SOUND_IN:
        return h3_audio_vae_open(&p->net.audio, p->dev, p->ck, H3_AUDIO_VAE_ENCODER);
    case H3_PART_SOUND:
        return h3_audio_vae_open(&p->net.audio, p->dev, p->ck, H3_AUDIO_VAE_DECODER);
    case H3_PART_PICTURE:
        return h3_video_vae_open(&p->net.video, p->dev, p->ck, H3_VIDEO_VAE_DECODER);
    default:
        return h3_dit_open(&p->net.dit, p->ck, p->dev);
    }
}

h3_status h3_part_bind(h3_part *p, const h3_engine *e)
{
    h3_status st;

    if (p->net.any) return H3_OK;
    p->dev->store_tag = (int)p->kind;
    st = bind(p, e->act);
    if (st == H3_OK && roles[p->kind] == H3_ROLE_DIT) p->net.dit->keeps = e->keeps;
    return st;
}

void h3_part_leave(h3_part **pp, const h3_engine *e, h3_status st)
{
    if (*pp && (!e->keeps || st != H3_OK)) close_part(*pp);
    *pp = NULL;
}

bool h3_parts_close(h3_engine *e)
{
    bool any = false;

    for (int is_plan = 0; is_plan < 2; is_plan++)
        for (int i = 0; i < H3_PART_KINDS; i++) {
            any = any || e->part[is_plan][i].ck;
            close_part(&e->part[is_plan][i]);
        }
    return any;
}

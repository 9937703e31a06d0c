/**
 * Naming rules; see names.h. Facts: the released checkpoint's index, diffusers' converter
 * (scripts/convert_minimax_h3_to_diffusers.py), ComfyUI's model detection, llama.cpp's
 * gguf-py tensor_mapping.
 */
#include "names.h"
#include "suffix.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool h3_name_match(const char *p, const char *s)
{
    const char *star = NULL, *back = NULL;

    while (*s) {
        if (*p == '*') {
            star = p++;
            back = s;
        } else if (*p == '#' && isdigit((unsigned char)*s)) {
            while (isdigit((unsigned char)*s))
                s++;
            p++;
        } else if (*p == *s && *p != '#') {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return *p == '\0';
}

const char *h3_role_name(h3_role r)
{
    static const char *const names[] = {
        "unknown",   "MiniMax-H3 DiT", "text encoder",         "video VAE",
        "audio VAE", "LoRA adapter",   "other MiniMax-H3 file"};
    return (unsigned)r < sizeof names / sizeof *names ? names[r] : "unknown";
}

/* ---- detection ---- */

static const char *const prefixes[] = {"model.diffusion_model.", "diffusion_model.",
                                       "first_stage_model.", "transformer.", "vae."};

const char *h3_names_strip(const char *prefix, const char *name)
{
    return starts(name, prefix) ? name + strlen(prefix) : name;
}

/* The prefix that most names have, or "": strangers may come without it. */
static const char *common_prefix(const h3_manifest *m)
{
    const int64_t n = h3_manifest_count(m);

    for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
        int64_t with = 0;
        for (int64_t i = 0; i < n; i++)
            with += starts(h3_manifest_at(m, i)->name, prefixes[k]);
        if (2 * with > n) return prefixes[k];
    }
    return "";
}

typedef struct seen {
    bool video_proj, audio_proj, blocks, diff_blocks, diff_audio, lora, vvae, vvae_split, audio_ups,
        audio_in, te, te_comfy, te_llama, control, upscaler;
} seen;

static void look_at(seen *s, const char *n)
{
    s->video_proj |= strcmp(n, "video_patch_proj.weight") == 0;
    s->audio_proj |= strcmp(n, "audio_patch_proj.weight") == 0;
    s->blocks |= starts(n, "blocks.") && strstr(n, ".attn.qkv_proj.") != NULL;
    s->diff_blocks |= starts(n, "transformer_blocks.");
    s->diff_audio |= strcmp(n, "audio_proj_in.weight") == 0;
    s->lora |= strstr(n, ".lora_A.") || strstr(n, ".lora_B.") || strstr(n, ".lora_down.") ||
               strstr(n, ".lora_up.");
    s->vvae |= starts(n, "decoder.transformer_blocks.");
    s->vvae_split |= starts(n, "decoder.transformer_blocks.") && strstr(n, ".attn.to_q.");
    s->audio_ups |= starts(n, "decoder.ups.0.0.");
    s->audio_in |= starts(n, "dec_in_proj.");
    s->te |= starts(n, "model.language_model.layers.") || starts(n, "language_model.model.layers.");
    s->te_comfy |= starts(n, "model.layers.") || starts(n, "visual.blocks.");
    s->te_llama |= starts(n, "blk.") || starts(n, "v.blk.");
    s->control |= starts(n, "control_proj_in.") || starts(n, "control_blocks.");
    s->upscaler |= starts(n, "in_blocks.") || starts(n, "upscale_blocks.");
}

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* llama.cpp numbers deepstack mergers by the vision layer they follow; we count them. */
static void find_deepstack(h3_naming *out, const h3_manifest *m)
{
    for (int64_t i = 0; i < h3_manifest_count(m) && out->n_deepstack < 8; i++) {
        const char *n = h3_manifest_at(m, i)->name;
        int layer, j = 0;
        if (sscanf(n, "v.deepstack.%9d.", &layer) != 1) continue;
        while (j < out->n_deepstack && out->deepstack[j] != layer)
            j++;
        if (j == out->n_deepstack) out->deepstack[out->n_deepstack++] = layer;
    }
    qsort(out->deepstack, (size_t)out->n_deepstack, sizeof *out->deepstack, by_value);
}

void h3_names_detect(h3_naming *out, const h3_manifest *m)
{
    seen s = {0};

    memset(out, 0, sizeof *out);
    out->prefix = common_prefix(m);
    for (int64_t i = 0; i < h3_manifest_count(m); i++)
        look_at(&s, h3_names_strip(out->prefix, h3_manifest_at(m, i)->name));
    if (s.lora) {
        out->role = H3_ROLE_LORA;
        out->prefix = ""; // adapters mix prefixes; lora.c strips each name
    } else if (s.control || s.upscaler) {
        out->role = H3_ROLE_OTHER;
        snprintf(out->other, sizeof out->other, "%s",
                 s.control ? "a control network" : "a latent upscaler");
    } else if (s.video_proj || s.audio_proj || (s.blocks && !s.diff_blocks)) {
        out->role = H3_ROLE_DIT;
    } else if (s.diff_blocks && s.diff_audio) {
        out->role = H3_ROLE_DIT;
        out->layout = H3_LAYOUT_DIFFUSERS;
    } else if (s.vvae) {
        out->role = H3_ROLE_VIDEO_VAE;
        out->layout = s.vvae_split ? H3_LAYOUT_DIFFUSERS : H3_LAYOUT_ORIGINAL;
    } else if (s.audio_ups && s.audio_in) {
        out->role = H3_ROLE_AUDIO_VAE;
    } else if (s.te || s.te_comfy || s.te_llama) {
        out->role = H3_ROLE_TEXT_ENCODER;
        out->layout = s.te ? H3_LAYOUT_ORIGINAL : s.te_comfy ? H3_LAYOUT_COMFY : H3_LAYOUT_LLAMA;
        find_deepstack(out, m);
    }
}

/* ---- renaming ---- */

typedef struct rule {
    const char *from, *to;
    uint8_t piece, slot;
} rule;

/* A rule whose `from` begins with '.' replaces the first such run anywhere; others only a prefix.
 * All that apply are applied, in order. */
static const rule dit_diffusers[] = {
    {"transformer_blocks.", "blocks.", 0, 0},
    {"token_refiner.refiner_blocks.", "token_refiner.blocks.", 0, 0},
    {"time_embedder.linear_1.", "time_embedder.proj_in.", 0, 0},
    {"time_embedder.linear_2.", "time_embedder.proj_out.", 0, 0},
    {"proj_in.", "video_patch_proj.", 0, 0},
    {"audio_proj_in.", "audio_patch_proj.", 0, 0},
    {"context_embedder.", "condition_proj.", 0, 0},
    {"norm_out.norm.", "final_layer.norm.", 0, 0},
    {"norm_out.linear.", "final_layer.adaln_proj.linear.", 0, 0},
    {"proj_out.", "final_layer.video_out.", 0, 0},
    {"audio_proj_out.", "final_layer.audio_out.", 0, 0},
    {".attn.to_q.", ".attn.qkv_proj.", H3_PIECE_STACK, 0},
    {".attn.to_k.", ".attn.qkv_proj.", H3_PIECE_STACK, 1},
    {".attn.to_v.", ".attn.qkv_proj.", H3_PIECE_STACK, 2},
    {".attn.norm_q.", ".attn.q_norm.", 0, 0},
    {".attn.norm_k.", ".attn.k_norm.", 0, 0},
    {".attn.to_out.0.", ".attn.out_proj.", 0, 0},
    {".ff.net.0.proj.", ".mlp.fc1.", H3_PIECE_SWAP, 0},
    {".ff.net.2.", ".mlp.fc2.", 0, 0},
};

static const rule vvae_diffusers[] = {
    {"encoder.down_blocks.", "encoder.down.", 0, 0},
    {".resnets.", ".block.", 0, 0},
    {".conv_shortcut.", ".nin_shortcut.", 0, 0},
    {".downsamplers.0.", ".downsample.", 0, 0},
    {"decoder.proj_in.", "decoder.x_embedder.", 0, 0},
    {".attn.to_q.", ".attn.to_qkv.", H3_PIECE_STACK, 0},
    {".attn.to_k.", ".attn.to_qkv.", H3_PIECE_STACK, 1},
    {".attn.to_v.", ".attn.to_qkv.", H3_PIECE_STACK, 2},
    {".attn.to_out.0.", ".attn.to_out.", 0, 0},
    {".ff.net.0.proj.", ".ff.w1.", H3_PIECE_SWAP, 0},
    {".ff.net.2.", ".ff.w2.", 0, 0},
};

static const rule te_original[] = {
    {"language_model.model.", "model.language_model.", 0, 0},
    {"language_model.lm_head.", "lm_head.", 0, 0},
    {"visual.", "model.visual.", 0, 0},
};

static const rule te_comfy[] = {
    {"visual.", "model.visual.", 0, 0},
    {"model.layers.", "model.language_model.layers.", 0, 0},
    {"model.embed_tokens.", "model.language_model.embed_tokens.", 0, 0},
    {"model.norm.", "model.language_model.norm.", 0, 0},
};

static const rule te_llama[] = {
    {"token_embd.", "model.language_model.embed_tokens.", 0, 0},
    {"output_norm.", "model.language_model.norm.", 0, 0},
    {"output.", "lm_head.", 0, 0},
    {"blk.", "model.language_model.layers.", 0, 0},
    {"v.patch_embd.weight.1", "model.visual.patch_embed.proj.weight", H3_PIECE_FRAME, 1},
    {"v.patch_embd.weight", "model.visual.patch_embed.proj.weight", H3_PIECE_FRAME, 0},
    {"v.patch_embd.", "model.visual.patch_embed.proj.", 0, 0},
    {"v.position_embd.", "model.visual.pos_embed.", 0, 0},
    {"v.post_ln.", "model.visual.merger.norm.", 0, 0},
    {"mm.0.", "model.visual.merger.linear_fc1.", 0, 0},
    {"mm.2.", "model.visual.merger.linear_fc2.", 0, 0},
};
static const rule te_llama_text[] = {
    {".attn_norm.", ".input_layernorm.", 0, 0},
    {".ffn_norm.", ".post_attention_layernorm.", 0, 0},
    {".attn_q.", ".self_attn.q_proj.", 0, 0},
    {".attn_k.", ".self_attn.k_proj.", 0, 0},
    {".attn_v.", ".self_attn.v_proj.", 0, 0},
    {".attn_output.", ".self_attn.o_proj.", 0, 0},
    {".attn_q_norm.", ".self_attn.q_norm.", 0, 0},
    {".attn_k_norm.", ".self_attn.k_norm.", 0, 0},
    {".ffn_gate.", ".mlp.gate_proj.", 0, 0},
    {".ffn_up.", ".mlp.up_proj.", 0, 0},
    {".ffn_down.", ".mlp.down_proj.", 0, 0},
};
static const rule te_llama_vision[] = {
    {"v.blk.", "model.visual.blocks.", 0, 0},
    {".attn_qkv.", ".attn.qkv.", 0, 0},
    {".attn_out.", ".attn.proj.", 0, 0},
    {".ffn_up.", ".mlp.linear_fc1.", 0, 0},
    {".ffn_down.", ".mlp.linear_fc2.", 0, 0},
    {".ln1.", ".norm1.", 0, 0},
    {".ln2.", ".norm2.", 0, 0},
};

static const rule avae[] = {
    {".weight_g", ".weight", H3_PIECE_NORM, 0},
    {".weight_v", ".weight", H3_PIECE_NORM, 1},
    {".parametrizations.weight.original0", ".weight", H3_PIECE_NORM, 0},
    {".parametrizations.weight.original1", ".weight", H3_PIECE_NORM, 1},
};

static bool apply(h3_canonical *c, const rule *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char out[sizeof c->name];
        const char *at = r[i].from[0] == '.'          ? strstr(c->name, r[i].from)
                         : starts(c->name, r[i].from) ? c->name
                                                      : NULL;
        if (!at) continue;
        const int len = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - c->name), c->name, r[i].to,
                                 at + strlen(r[i].from));
        if (len < 0 || (size_t)len >= sizeof out) return false;
        memcpy(c->name, out, (size_t)len + 1);
        if (r[i].piece) {
            c->piece = r[i].piece;
            c->slot = r[i].slot;
        }
    }
    return true;
}
#define APPLY(c, rules) apply(c, rules, sizeof(rules) / sizeof *(rules))

static bool llama_name(h3_canonical *c, const h3_naming *n)
{
    int layer, used = 0;

    if (starts(c->name, "blk.")) return APPLY(c, te_llama_text) && APPLY(c, te_llama);
    if (starts(c->name, "v.blk.")) return APPLY(c, te_llama_vision);
    if (sscanf(c->name, "v.deepstack.%9d.%n", &layer, &used) == 1 && used) {
        char rest[sizeof c->name];
        int j = 0;
        while (j < n->n_deepstack && n->deepstack[j] != layer)
            j++;
        snprintf(rest, sizeof rest, "%s", c->name + used);
        const int len =
            snprintf(c->name, sizeof c->name, "model.visual.deepstack_merger_list.%d.%s%s", j,
                     starts(rest, "fc") ? "linear_" : "", rest);
        return len > 0 && (size_t)len < sizeof c->name;
    }
    return APPLY(c, te_llama);
}

/* Longest first where one is the beginning of another. */
static const struct {
    const char *suffix;
    uint8_t companion;
} companions[] = {
    {".weight_scale_2", H3_COMP_SCALE_2},    {".weight_scale", H3_COMP_SCALE},
    {".weight_s_rel", H3_COMP_S_REL},        {".weight_s_channel", H3_COMP_S_CHANNEL},
    {".weight_codebook", H3_COMP_CODEBOOK},  {".weight_correction", H3_COMP_CORRECTION},
    {".pre_quant_scale", H3_COMP_PRE_QUANT}, {".input_scale", H3_COMP_INPUT},
    {".comfy_quant", H3_COMP_TAG},           {".weight_global_scale", H3_COMP_SCALE_2},
    {".weight_packed", H3_COMP_NONE},        {".scale_weight", H3_COMP_SCALE},
    {".scale_input", H3_COMP_INPUT},         {".input_global_scale", H3_COMP_INPUT},
};

bool h3_names_canonical(h3_canonical *c, const h3_naming *n, const char *source)
{
    const char *name = h3_names_strip(n->prefix, source);
    const size_t len = strlen(name);

    memset(c, 0, sizeof *c);
    if (len + 16 >= sizeof c->name) return false;
    memcpy(c->name, name, len + 1);
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++)
        if (h3_ends_with(c->name, companions[i].suffix)) {
            c->companion = companions[i].companion;
            strcpy(c->name + len - strlen(companions[i].suffix), ".weight");
            break;
        }
    switch (n->role) {
    case H3_ROLE_DIT:
        return n->layout != H3_LAYOUT_DIFFUSERS || APPLY(c, dit_diffusers);
    case H3_ROLE_VIDEO_VAE:
        return n->layout != H3_LAYOUT_DIFFUSERS || APPLY(c, vvae_diffusers);
    case H3_ROLE_AUDIO_VAE:
        return APPLY(c, avae);
    case H3_ROLE_TEXT_ENCODER:
        return n->layout == H3_LAYOUT_ORIGINAL ? APPLY(c, te_original)
               : n->layout == H3_LAYOUT_COMFY  ? APPLY(c, te_comfy)
                                               : llama_name(c, n);
    default:
        return true;
    }
}

/* The rules read backwards, last to first. A rule that begins with '.' matches anywhere, others
 * only at the begin, and those whose results begin alike are told apart by the dot that ends them.
 */
static void unapply(char name[256], const rule *r, size_t n, int slot)
{
    for (size_t i = n; i-- > 0;) {
        char out[256];
        const char *at = r[i].to[0] == '.'       ? strstr(name, r[i].to)
                         : starts(name, r[i].to) ? name
                                                 : NULL;
        if (!at || (r[i].piece == H3_PIECE_STACK && r[i].slot != slot)) continue;
        const int len = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - name), name, r[i].from,
                                 at + strlen(r[i].to));
        if (len > 0 && (size_t)len < sizeof out) memcpy(name, out, (size_t)len + 1);
    }
}

char *h3_names_diffusers(h3_role role, const char *canonical, int slot)
{
    char name[256];

    snprintf(name, sizeof name, "%s", canonical);
    if (role == H3_ROLE_DIT)
        unapply(name, dit_diffusers, sizeof dit_diffusers / sizeof *dit_diffusers, slot);
    if (role == H3_ROLE_VIDEO_VAE)
        unapply(name, vvae_diffusers, sizeof vvae_diffusers / sizeof *vvae_diffusers, slot);
    return h3_strdupf("%s", name);
}

/* ---- what belongs to a model ---- */

static const char *const dit_known[] = {"video_patch_proj.*",
                                        "audio_patch_proj.*",
                                        "condition_proj.*",
                                        "time_embedder.*",
                                        "adaln_t_table",
                                        "token_refiner.blocks.#.norm#.weight",
                                        "token_refiner.blocks.#.attn.q_norm.weight",
                                        "token_refiner.blocks.#.attn.k_norm.weight",
                                        "token_refiner.blocks.#.attn.qkv_proj.*",
                                        "token_refiner.blocks.#.attn.out_proj.*",
                                        "token_refiner.blocks.#.mlp.fc#.*",
                                        "token_refiner.final_norm.weight",
                                        "blocks.#.norm#.weight",
                                        "blocks.#.attn.q_norm.weight",
                                        "blocks.#.attn.k_norm.weight",
                                        "blocks.#.attn.qkv_proj.*",
                                        "blocks.#.attn.out_proj.*",
                                        "blocks.#.mlp.fc#.*",
                                        "blocks.#.adaln_proj.linear.*",
                                        "final_layer.*",
                                        "rope.inv_freq",
                                        NULL};
static const char *const te_known[] = {"model.language_model.*", "model.visual.*", "lm_head.*",
                                       NULL};
static const char *const vvae_known[] = {"encoder.*",         "decoder.*", "quant_conv.*",
                                         "post_quant_conv.*", "latents_*", NULL};
static const char *const avae_known[] = {"encoder.*",   "decoder.*",   "dec_in_proj.*",
                                         "mean_proj.*", "logs_proj.*", "pre_block.*",
                                         "latents_*",   NULL};

bool h3_names_known(h3_role role, const char *name)
{
    const char *const *p = role == H3_ROLE_DIT            ? dit_known
                           : role == H3_ROLE_TEXT_ENCODER ? te_known
                           : role == H3_ROLE_VIDEO_VAE    ? vvae_known
                           : role == H3_ROLE_AUDIO_VAE    ? avae_known
                                                          : NULL;
    for (; p && *p; p++)
        if (h3_name_match(*p, name)) return true;
    return false;
}

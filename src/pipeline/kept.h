/**
 * Opened parts of the model. An engine that keeps (keep_loaded) finds a part of the request before
 * as it was: mapped, checked and bound. Otherwise, and when a file of it has changed meanwhile, it
 * is opened anew. The memory plan has parts of its own, on its counting device.
 */
#ifndef H3_PIPELINE_KEPT_H
#define H3_PIPELINE_KEPT_H

#include "checkpoint.h"

struct h3_engine;
struct h3_encoder;
struct h3_dit;
struct h3_video_vae;
struct h3_audio_vae;

typedef enum h3_part_kind {
    H3_PART_TEXT = 0,
    H3_PART_PIXELS,   ///< video VAE, encoder
    H3_PART_SOUND_IN, ///< audio VAE, encoder
    H3_PART_DIT,
    H3_PART_DIT_REF,
    H3_PART_SOUND,   ///< audio VAE, decoder
    H3_PART_PICTURE, ///< video VAE, decoder
    H3_PART_KINDS
} h3_part_kind;

/** What one kind of part may be opened as. */
typedef struct h3_part_how {
    bool has_vision;  ///< TEXT
    bool is_expanded; ///< DIT: quantized matrices are decoded when they are bound
} h3_part_how;

typedef struct h3_part {
    h3_checkpoint *ck; ///< NULL: not open
    union {
        struct h3_encoder *encoder;
        struct h3_dit *dit;
        struct h3_video_vae *video;
        struct h3_audio_vae *audio;
        void *any; ///< NULL: not bound yet
    } net;
    h3_part_kind kind;
    h3_part_how how;
    h3_dev *dev;
} h3_part;

/** The checkpoint of a part; its network is there if the part was kept. `d` is the engine's device,
 *  or the plan's. Free with h3_part_leave. */
H3_NODISCARD h3_status h3_part_open(h3_part **out, struct h3_engine *e, h3_dev *d,
                                    h3_part_kind kind, h3_part_how how);
/** Binds the network of an open part, unless it is bound. */
H3_NODISCARD h3_status h3_part_bind(h3_part *p, const struct h3_engine *e);
/** Ends the use of a part: it stays when the engine keeps and `st`, the outcome, is H3_OK. Accepts
 *  *p NULL; clears it. */
void h3_part_leave(h3_part **p, const struct h3_engine *e, h3_status st);
/** Closes all parts of the engine; false when none was open. */
bool h3_parts_close(struct h3_engine *e);

#endif

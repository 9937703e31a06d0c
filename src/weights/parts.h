/**
 * Finds the parts of a model in a folder by what the files hold: the released and the diffusers
 * layout, a ComfyUI models folder, or loose files.
 */
#ifndef H3_WEIGHTS_PARTS_H
#define H3_WEIGHTS_PARTS_H

#include "checkpoint.h"

/** Paths for h3_ckpt_open, malloc'd; NULL: not found. */
typedef struct h3_parts {
    char *dit;          ///< for t2va and fl2va
    char *dit_ref;      ///< for ref2va
    char *dit_any;      ///< a DiT whose partition nothing tells
    char *text_encoder; ///< the text file when vision is in a file of its own
    char *mmproj;       ///< that file
    char *video_vae, *audio_vae;
    char *tokenizer; ///< folder or file; a GGUF that holds a vocabulary
    char *rival;     ///< another tokenizer that could be meant as well; NULL: there is none
    char *notes;     ///< one line per choice that had alternatives, or NULL
    char *unread;    ///< those of the lines that tell what could not be read, or NULL
} h3_parts;

/** Looks at most four levels deep. Files that cannot be read are passed over (and noted). */
H3_NODISCARD h3_status h3_parts_find(h3_parts *out, const char *folder);
void h3_parts_free(h3_parts *p);
/** H3_E_ARG, naming both, when nothing tells which of two tokenizers is the model's. */
H3_NODISCARD h3_status h3_parts_check_tokenizer(const h3_parts *p);

/** "fl2va", "ref2va" or NULL: by model_index.json beside or above, by folder or file name. */
const char *h3_partition_of(const char *path);

/** The same of an open file, which may say it itself (those that convert wrote). */
const char *h3_partition_in(const h3_manifest *m, const char *path);

/** malloc'd: "FOLDER cannot be searched: REASON, and 2 more; " for a sentence about a part that is
 * not found, since it may be there; empty where all could be read. */
char *h3_parts_unread(const char *unread);

/** Which published file would fill a missing part ("dit", "text_encoder", ...). */
const char *h3_parts_advice(const char *part);

#endif

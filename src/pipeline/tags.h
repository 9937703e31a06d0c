/** What a prompt says in tags: labels of references, and marks of dialogue and sound. */
#pragma once

#include "plan.h"

/** Warns of tags that the model does not read as its author meant them: labels without their
 * reference, marks of dialogue without their end, and what is no tag of this model at all. `prompt`
 * may be NULL. */
void h3_tags_warn(h3_plan *p, const char *prompt);

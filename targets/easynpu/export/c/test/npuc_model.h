/* A software EasyNPU behind npuc_write, npuc_read and npuc_run, with the memories that npuc_program.h names. */
#ifndef NPUC_MODEL_H
#define NPUC_MODEL_H

/* Why a function of the machine failed, or NULL. */
const char *npuc_model_fault(void);

/* Fills the memories with values that no program may depend on. */
void npuc_model_power_up(void);

#endif

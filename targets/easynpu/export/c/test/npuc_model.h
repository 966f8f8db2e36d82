/* A software EasyNPU behind npuc_write, npuc_read and npuc_execute, with the memories that npuc_program.h names. */
#ifndef NPUC_MODEL_H
#define NPUC_MODEL_H

#include <stdint.h>

/* Why a function of the machine failed, or NULL. */
const char *npuc_model_fault(void);

/* Fills the memories with values that no program may depend on. */
void npuc_model_power_up(void);

/* Reads an identification register, for npuc_check; returns 1 if there is no such register. */
int npuc_model_register(uint32_t number, uint32_t *value);

#endif

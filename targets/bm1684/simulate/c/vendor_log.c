/* What the vendor's library for prices wants from the chip's firmware: a log, here of nothing. */
void fw_log(int level, char *format, ...);

void fw_log(int level, char *format, ...)
{
    (void)level;
    (void)format;
}

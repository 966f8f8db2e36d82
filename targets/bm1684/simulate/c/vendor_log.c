/* The log function that the vendor's library expects from the chip's firmware; it logs nothing. */
void fw_log(int level, char *format, ...);

void fw_log(int level, char *format, ...)
{
    (void)level;
    (void)format;
}

/** The log of the service, as all rooms but `http` write it. A pino logger is one. */
export interface Log {
  info(about: object, message: string): void;
  warn(about: object, message: string): void;
  error(about: object, message: string): void;
}

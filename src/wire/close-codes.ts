/** Why the server closed a WebSocket, beyond the codes of RFC 6455. */
export const closeCodes = {
  done: 1000,
  stopping: 1001,
  tooSlow: 1008,
  broken: 1011,
  badMessage: 4400,
  revoked: 4401,
  destroyed: 4404,
  silent: 4408,
  paused: 4409,
} as const;

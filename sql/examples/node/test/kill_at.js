// Preloaded by `node --import`: kills the process with SIGKILL where it says that it did PG_ONCE_KILL_AT.

import { subscribe } from 'node:diagnostics_channel';

subscribe('pg_once', ({ did }) => {
  if (did === process.env.PG_ONCE_KILL_AT) process.kill(process.pid, 'SIGKILL');
});

/** The text that the API's document begins with, and so the page /docs: what holds for all operations. Markdown. */
export const apiGuide = `
microVM sandboxes over HTTP and WebSocket. The [dashboard](/) does the same by this API, and makes keys.

## Keys

Every request carries a key of its team, as \`X-API-Key: KEY\` or \`Authorization: Bearer KEY\`; where both are sent, the first counts.
Without a key are answered: \`/healthz\`, \`/openapi.json\`, \`/docs\`, \`/sdk.tgz\`, signed URLs of files, and \`POST /v1/sign-in\`.
The same 404 stands for what does not exist and for what belongs to another team.

## Answers

- JSON in and out, but for files and archives. \`null\` for an optional field is the same as leaving it out. A field that the operation
  does not know changes nothing; the answer names it in \`X-Ignored-Fields\`. A query parameter that it does not know is 400.
- A path takes a capsule's id or its name.
- Every refusal is \`{"error": {"code", "message", "details"?}}\`. The code is for programs and stays. Checks are made in this order: key (401),
  path (404, 405), capsule (404), its status (409), the request's own fields (400).
- 429 and 503 carry \`Retry-After\`, the seconds after which the same request may succeed. \`GET /v1/limits\` has every limit.
- \`X-Request-Id\` names the request in the service's log.

## Waiting

\`POST /v1/capsules?wait=running\` is answered when the capsule runs, and \`GET /v1/capsules/{id}?wait=STATUS\` when it has that status;
\`timeout\` sets the seconds, and after them the answer is the capsule as it is.

## Events

\`GET /v1/events\` streams every change of the team's capsules and templates, as server-sent events, until the client leaves. After
\`reset\`, list them anew: changes before it may be missing. Other events carry the capsule or template as it is now, or what was removed.

## Sending a request again

With an \`Idempotency-Key\`, the same \`POST /v1/capsules\` or \`/v1/snapshots\` changes nothing again for 24 hours and gets the first
answer, with \`Idempotent-Replayed: true\`.

## WebSockets

A browser cannot send the key with a WebSocket: \`POST /v1/ws-tickets\` makes a \`ticket\` for one path, to be used once within 30 s as
a query parameter. \`Execute\` on this page opens no socket; a browser's console does:

    const [path, query, first] = ["/v1/capsules/ID/exec/stream", "", { type: "start", cmd: "uname", args: ["-a"] }];
    const headers = { "X-API-Key": "KEY", "Content-Type": "application/json" };
    const answer = await fetch("/v1/ws-tickets", { method: "POST", headers, body: JSON.stringify({ path }) });
    const socket = new WebSocket(\`\${path}?ticket=\${(await answer.json()).ticket}&\${query}\`);
    socket.onmessage = ({ data }) => console.log(data);
    socket.onopen = () => first && socket.send(JSON.stringify(first));

The first line for each, and a command that opens the same socket:

| to see | in the console | at a shell |
|---|---|---|
| a command | \`["/v1/capsules/ID/exec/stream", "", { type: "start", cmd: "uname", args: ["-a"] }]\` | \`capsule exec ID -- uname -a\` |
| a process | \`["/v1/capsules/ID/processes/TAG/stream", "from=start"]\` | \`capsule logs -f ID TAG\` |
| a terminal | \`["/v1/capsules/ID/pty", "", { type: "start", cmd: "bash", cols: 80, rows: 24 }]\` | \`capsule shell ID\` |
| changes | \`["/v1/capsules/ID/files/watch", "path=/root"]\` | none |
| a port | bytes, not lines | \`capsule forward ID 8000\` |

Refusals come as an HTTP answer before the socket opens. Messages are JSON in text frames; further fields are ignored.

| socket | the client sends | the server sends, in this order |
|---|---|---|
| \`exec/stream\` | \`start\` within 30 s, then \`stdin\`, \`stdin_end\`, \`stop\` | \`start\` with the PID, \`stdout\` and \`stderr\`, \`exit\` with the code |
| \`processes/{selector}/stream\` | \`stdin\`, \`stdin_end\` | \`start\`, \`dropped\` where output is no longer kept, \`stdout\` and \`stderr\`, \`exit\` |
| \`pty\` | \`start\`, or \`connect\` with a \`tag\`; then \`input\` (base64), \`resize\`, \`kill\` | \`started\` with the tag, \`output\` (base64) and \`ping\`, \`exit\` |
| \`files/watch\` | nothing | \`ready\`, then \`event\` and, where events were lost, \`overflow\` |
| \`ports/{port}/tcp\` | bytes in binary messages, \`end\` as text | the same |

An \`error\` message may come at any place. A message that cannot be used gets one and changes nothing; a process that cannot be started
gets one with a \`code\`, and then the socket closes. While a program does not read its input, its client is not read.

| close | when |
|---|---|
| 1000 | after \`exit\`, or the process could not be started; after the \`remove\` of a watched directory |
| 1001 | the service stops, or the capsule is moved to another host |
| 1003 | of \`ports/{port}/tcp\`: another text than \`end\` |
| 1008 | the client reads too slowly |
| 1011 | the guest stopped, rebooted or was lost; a connection to a port was reset |
| 1013 | the incomplete messages and bodies of the team are as large as they may be |
| 4400 | the first message could not be used |
| 4401 | the key was revoked |
| 4404 | the capsule was destroyed |
| 4408 | the first message did not come within 30 s |
| 4409 | the capsule was paused |
`.trim();

/** Entry point of the dashboard: reads the address, restores the session, renders. */
import { render } from "preact";
import { App } from "./app.tsx";
import { updateTimes } from "./parts/time.tsx";
import { Account } from "./state/account.ts";
import { followAddress, tokenIn } from "./state/route.ts";

const token = tokenIn(location.hash);
// The token must not stay in the address bar, the history or a bookmark.
if (token !== undefined) history.replaceState(null, "", `${location.pathname}${location.search}`);

followAddress();
updateTimes();
const account = new Account();
void account.restore(token);
render(<App account={account} />, document.getElementById("app")!);

/** The dashboard's start: theme and address, then whoever is signed in. */
import { render } from "preact";
import { App } from "./app.tsx";
import { keepTime } from "./parts/time.tsx";
import { Account } from "./state/account.ts";
import { followAddress, tokenIn } from "./state/route.ts";

const token = tokenIn(location.hash);
// A one-time link must not stay where it can be read over a shoulder, bookmarked or sent on.
if (token !== undefined) history.replaceState(null, "", `${location.pathname}${location.search}`);

followAddress();
keepTime();
const account = new Account();
void account.restore(token);
render(<App account={account} />, document.getElementById("app")!);

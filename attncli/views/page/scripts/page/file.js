// Entry point of a page opened from a file: it shows the reports stored in it.

import { followAddress, listenToAddress } from "./address.js";
import { open } from "./page.js";
import { run } from "./show.js";

listenToAddress();
run(open(followAddress));

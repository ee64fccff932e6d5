"""An event loop in a thread of its own, as a server actor has one."""

import asyncio
import threading


class LoopThread:
    """The loop, until `end`."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def end(self):
        """Cancel what it has, and close it: a task that never began would be noted in a later test."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop).result(timeout=60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_others():
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

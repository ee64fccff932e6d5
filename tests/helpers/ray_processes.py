"""Which of a command's processes are client actors, by the titles that Ray gives them."""

import psutil

# Between two calls the class; during one what the call is named (`dispatch.host_calls.named`).
CLIENTS = ("ray::ClientActor", "ray::round", "ray::evaluation")


SERVER = "ray::ServerActor"


def actors(process, titles=CLIENTS):
    """Ids of a process's client actors, or of those with other titles."""
    found = []
    for child in process.children(recursive=True):
        try:
            title = " ".join(child.cmdline())
        except psutil.Error:  # one that was killed before and is not gone yet
            continue
        if title.startswith(titles):
            found.append(child.pid)
    return found

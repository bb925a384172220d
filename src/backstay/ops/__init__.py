"""Operations that people and programs perform on a queue, shared by the app, server, dashboard and CLI."""

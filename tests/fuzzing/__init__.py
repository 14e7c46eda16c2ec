"""Reading hostile files, made by changing good ones where that leads to code not yet reached."""
